/*
 * Runs a fuzz target over the files of the directories named on the command line, without
 * libFuzzer. So the corpus is a test with every compiler.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FILE_LIMIT (1 << 20) /* bytes; corpus files are small */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Runs the target over one file; 0, or -1 with errno. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes = NULL;
    struct stat info;
    int result = -1;

    if (file == NULL) {
        return -1;
    }
    if (fstat(fileno(file), &info) == 0 && info.st_size <= FILE_LIMIT) {
        size_t size = (size_t)info.st_size;

        bytes = malloc(size > 0 ? size : 1); /* exactly the size, so that a sanitizer sees accesses
                                              * behind it */
        if (bytes != NULL && fread(bytes, 1, size, file) == size) {
            (void)LLVMFuzzerTestOneInput(bytes, size);
            result = 0;
        }
    }
    free(bytes);
    (void)fclose(file);
    return result;
}

/* Runs the target over a directory's files; their number, or -1 after a message. */
static int replay_directory(const char *directory)
{
    struct dirent **entries;
    int count = scandir(directory, &entries, NULL, alphasort);
    int done = count < 0 ? -1 : 0;

    if (count < 0) {
        fprintf(stderr, "replay: %s: %s\n", directory, strerror(errno));
    }
    for (int i = 0; i < count; i++) {
        char path[4096];
        int length = snprintf(path, sizeof(path), "%s/%s", directory, entries[i]->d_name);

        if (entries[i]->d_name[0] != '.' && done >= 0) {
            if (length < 0 || length >= (int)sizeof(path) || replay_file(path) != 0) {
                fprintf(stderr, "replay: %s cannot be read\n", path);
                done = -1;
            } else {
                done++;
            }
        }
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
    return done;
}

int main(int argc, char **argv)
{
    int files = 0;

    for (int i = 1; i < argc; i++) {
        int done = replay_directory(argv[i]);

        if (done < 0) {
            return 1;
        }
        files += done;
    }
    printf("replayed %d files\n", files);
    return files > 0 ? 0 : 1; /* an empty corpus would test nothing */
}
