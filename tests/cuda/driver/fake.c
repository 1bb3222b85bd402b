#include "tests/cuda/driver/fake.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/codec.h"

static const struct wish usual = {.words = WORDS, .host = HOST};

struct fake fake;

static int fake_share(uint64_t size, void *bytes)
{
    const int fd = memfd_create("fake", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    *(void **)bytes = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(*(void **)bytes, MAP_FAILED);
    return fd;
}

static void fake_send(const Adtopk__LocalReply *reply, const int *descriptor, unsigned count)
{
    char control[CMSG_SPACE(2 * sizeof(int))] = {0};
    size_t size = 0;
    uint8_t *bytes = codec_pack(&reply->base, &size);
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct cmsghdr *header;

    if (count > 0) {
        message.msg_control = control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptor, count * sizeof(int));
    }
    (void)sendmsg(fake.socket, &message, MSG_NOSIGNAL);
    free(bytes);
}

/* Makes the table of results: every gradient and update has a place of its own. */
static int fake_results(void)
{
    struct local_results *table;
    const int fd = fake_share(RESULTS, &table);

    *table = (struct local_results){.tensors = TENSORS, .op_result_offset = 8192};
    for (unsigned t = 0; t < TENSORS; t++) {
        table->tensor[t].gradient_offset = DEVICE + t * PLACE;
        table->tensor[t].update_offset = 4096 + t * sizeof(struct local_update);
    }
    (void)munmap(table, RESULTS);
    return fd;
}

static void fake_answer(const Adtopk__LocalRequest *request)
{
    Adtopk__LocalReply reply = ADTOPK__LOCAL_REPLY__INIT;
    Adtopk__LocalOpened opened = ADTOPK__LOCAL_OPENED__INIT;
    Adtopk__LocalArena arena = ADTOPK__LOCAL_ARENA__INIT;
    Adtopk__LocalReady ready = ADTOPK__LOCAL_READY__INIT;
    Adtopk__LocalBye bye = ADTOPK__LOCAL_BYE__INIT;
    int results;

    switch (request->kind_case) {
    case ADTOPK__LOCAL_REQUEST__KIND_OPEN:
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_OPENED;
        reply.opened = &opened;
        fake_send(&reply, fake.descriptor, 2);
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_REGISTER:
        fake.asked = request->register_->tensors[0]->memory;
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_COMMIT:
        arena.size = fake.wish.host;
        arena.flags = FLAGS;
        arena.words = fake.wish.words;
        arena.device_offset = DEVICE;
        arena.device_size = fake.size;
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_ARENA;
        reply.arena = &arena;
        fake_send(&reply, fake.descriptor + 2, 2);
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_MAPPED:
        results = fake_results();
        ready.size = RESULTS;
        ready.step = fake.wish.step;
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_READY;
        reply.ready = &ready;
        fake_send(&reply, &results, 1);
        (void)close(results);
        break;
    case ADTOPK__LOCAL_REQUEST__KIND_LEAVE:
        reply.kind_case = ADTOPK__LOCAL_REPLY__KIND_BYE;
        reply.bye = &bye;
        fake_send(&reply, NULL, 0);
        break;
    default: break;
    }
}

static void *fake_serve(void *unused)
{
    uint8_t bytes[CODEC_LOCAL_MAX];
    ssize_t size;

    (void)unused;
    fake.socket = accept4(fake.listening, NULL, NULL, SOCK_CLOEXEC);
    while ((size = recv(fake.socket, bytes, sizeof bytes, 0)) > 0) {
        struct error err;
        Adtopk__LocalRequest *request = size > 1 ? (Adtopk__LocalRequest *)(void *)codec_unpack(
                                                       &adtopk__local_request__descriptor, bytes,
                                                       (size_t)size, CODEC_LOCAL_MAX, &err)
                                                 : NULL;
        if (request != NULL) {
            fake_answer(request);
            codec_free(&request->base);
        }
    }
    return NULL;
}

static void fake_memory(void)
{
    CUmemAllocationProp kind;
    struct driver_device list[DRIVER_DEVICES_MAX];
    struct error err;
    unsigned count;

    assert_int_equal(driver_open(&fake.driver, &err), ADTOPK_OK);
    assert_int_equal(driver_list(&fake.driver, list, &count, &err), ADTOPK_OK);
    fake.device = list[0];
    kind = driver_shared_memory(&fake.device);
    assert_int_equal(fake.driver.cuMemGetAllocationGranularity(
                         &fake.size, &kind, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
        0);
    assert_int_equal(fake.driver.cuMemCreate(&fake.memory, fake.size, &kind, 0), 0);
    assert_int_equal(fake.driver.cuMemExportToShareableHandle(&fake.descriptor[3], fake.memory,
                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
        0);
}

int fake_start(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    memset(&fake, 0, sizeof fake);
    fake.socket = -1;
    fake_memory();
    fake.descriptor[0] = fake_share(sizeof(struct local_ring), &fake.ring);
    fake.descriptor[1] = fake_share(PAGE, &fake.page);
    fake.descriptor[2] = fake_share(HOST, &fake.arena);
    fake.page->version = LOCAL_VERSION;
    fake.wish = usual;
    (void)snprintf(fake.path, sizeof fake.path, "/tmp/adtopk-test-%d.sock", (int)getpid());
    memcpy(address.sun_path, fake.path, strlen(fake.path) + 1);
    (void)unlink(fake.path);
    fake.listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return bind(fake.listening, (struct sockaddr *)&address, sizeof address) != 0 ||
           listen(fake.listening, 1) != 0 ||
           pthread_create(&fake.thread, NULL, fake_serve, NULL) != 0;
}

void fake_die(void)
{
    (void)shutdown(fake.socket, SHUT_RDWR);
}

void fake_stop(void)
{
    fake_die();
    (void)shutdown(fake.listening, SHUT_RDWR); /* the test may have failed before it opened */
    (void)pthread_join(fake.thread, NULL);
    (void)close(fake.socket);
    (void)close(fake.listening);
    (void)unlink(fake.path);
    (void)munmap(fake.ring, sizeof(struct local_ring));
    (void)munmap(fake.page, PAGE);
    (void)munmap(fake.arena, HOST);
    for (unsigned i = 0; i < 4; i++) {
        (void)close(fake.descriptor[i]);
    }
    (void)fake.driver.cuMemRelease(fake.memory);
    driver_close(&fake.driver);
}

struct local_word *fake_word(uint32_t at)
{
    return (struct local_word *)(void *)(fake.arena + WORDS) + at;
}

void fake_deliver(uint32_t at, uint64_t step, bool right)
{
    if (right) {
        atomic_store(&fake_word(at)->right, local_flag_of(step));
    }
    atomic_store(&fake_word(at)->over, local_flag_of(step));
}
