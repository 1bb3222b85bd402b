/*
 * How a rank joins its job, for adtopk_open(). <adtopk/adtopk.h> includes this header.
 */
#ifndef ADTOPK_OPTIONS_H
#define ADTOPK_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

/**
 * How to join. Set the size, and the fields that differ from their defaults. A field that is 0 or
 * NULL takes its default. That is the first environment variable of its list that is set, else a
 * fixed value. Each field takes its default by itself: a program may set some fields and leave
 * others to its environment.
 *
 * The environment variables are those of torchrun, MPI launchers and Slurm, tried in this order.
 * MPI comes before Slurm, because ranks that mpirun starts inside an allocation inherit the Slurm
 * variables of the process that started them. An empty variable counts as not set; a number must be
 * plain digits.
 */
struct adtopk_options {
    /** sizeof(struct adtopk_options). */
    size_t size;
    /** Address of the daemon: "unix:/path", or "tcp://host:port" of a daemon on another machine,
     * which is slower. Default: $ADTOPK_ADDRESS, else "unix:/run/adtopk/trainers/adtopkd.sock". */
    const char *address;
    /** Name of the job. Like run_id it has 1 to 63 bytes of UTF-8 without control or format
     * characters. Default: $ADTOPK_JOB, else "default". If a process opens a second context with
     * the same job, run id and rank, the library opens the job "JOB#2" instead, then "JOB#3". All
     * ranks must open such contexts in the same order. */
    const char *job;
    /** Tells runs of the same job apart. Default: $ADTOPK_RUN_ID; torchrun's TORCHELASTIC_RUN_ID
     * and restart count; SLURM_JOB_ID and step; PMIX_NAMESPACE or Open MPI's job id; else "0".
     * Where torchrun's id is its own default, "none", MASTER_ADDR:MASTER_PORT stands for it. */
    const char *run_id;
    /** Name of the group of ranks that exchange with each other. Use it where a model is cut into
     * parts and each part has its own ranks: the replicas of a pipeline stage, for example. A group
     * is a job of its own, named "JOB@GROUP" in messages and reports; rank and world_size count
     * within it. JOB@GROUP has 1 to 63 bytes. Default: NULL, all ranks of the job. */
    const char *group;
    /** This process, 0..world_size-1. Used only if has_rank is set; default: $RANK,
     * $OMPI_COMM_WORLD_RANK, $PMI_RANK, $SLURM_PROCID, and 0 in a job of one rank. */
    int rank;
    int has_rank;
    /** Ranks of the job, 1..65536. Default: $WORLD_SIZE, $OMPI_COMM_WORLD_SIZE, $PMI_SIZE,
     * $SLURM_NTASKS, else 1. If only $RANK is set adtopk_open() fails. */
    int world_size;
    /** Policy document (JSON, deploy/policy.md), the same on all ranks. Default: the daemon's. */
    const char *policy;
    /** Milliseconds to wait for the daemon to appear. 0: the default, 10,000; -1: do not wait. */
    int connect_timeout_ms;
    /** Not 0: signals end a wait, see Waiting above. Default: 0. */
    int interruptible;
    /**
     * For tcp://, ignored otherwise: path of the file with this trainer's own pair of keys, public
     * and secret, as `adtopkctl keygen` writes it. Nobody but the file's owner may have access to
     * it. The daemon must know the public key (its option trainers). adtopk_open() reads the file,
     * once. Default: $ADTOPK_KEY_FILE, else none.
     *
     * key_file and server_key go together, wherever each of them comes from. With both, the
     * connection is encrypted, and each end proves its identity. With neither it is not encrypted;
     * a daemon allows that on its own machine only. One without the other is ADTOPK_ERR_ARGUMENT.
     */
    const char *key_file;
    /** For tcp://, ignored otherwise: the public key of the daemon at `address`. It is the key
     * itself and not a path: 40 characters (Z85), the `public` of the daemon's key file. The
     * library talks to no daemon that lacks the secret key of this pair. Default:
     * $ADTOPK_SERVER_KEY, else none. */
    const char *server_key;
    /** Milliseconds to wait for the daemon's answer to adtopk_open() once the daemon is reached,
     * and for its goodbye in adtopk_close(). 0: the defaults, 30,000 and 10,000. A goodbye is never
     * awaited longer than 10,000. */
    int answer_timeout_ms;
    /** Milliseconds that a rank whose daemon was killed or stopped waits for another one: then its
     * calls go on as if nothing had happened. Only if the daemon's stores are kept, by systemd or
     * in a store_folder. A daemon that ends before the rank is back counts only if it was there for
     * that long. A thread of the library looks for another one while the program makes no call. The
     * time begins with the next call that waits or looks, or, with gradients on a GPU, at once. 0:
     * as connect_timeout_ms; -1: do not wait. */
    int return_timeout_ms;
    /** For a process that takes the place of one that ended, under the policy on_rank_loss "wait":
     * the step that it pushes first. The updates of all steps before are in its parameters.
     *
     * It is the step in which the others wait. If the rank pushed nothing in that step yet, it may
     * be the step before, too. The process pushes the whole step again. Nothing counts twice, and
     * it gets the updates that the others have. It registers and commits the same tensors as the
     * process before it, and goes on without a broadcast.
     *
     * Used only if comes_back is not 0. */
    uint64_t first_step;
    uint64_t comes_back;
};

#endif
