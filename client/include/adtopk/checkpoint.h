/*
 * Checkpoints: what the daemons keep of a job, on disk, to go on from there in another run.
 *
 *     adtopk_step_wait(context);
 *     ...                                  apply the updates
 *     adtopk_checkpoint_due(context, &due);
 *     if (due || it is time)
 *         save the parameters, adtopk_checkpoint_save()
 *
 *     adtopk_commit(context);              in the run that goes on
 *     adtopk_checkpoint_load()             and load the parameters
 *
 * Everything that adtopk.h says of structures, errors and threads holds here, too.
 */
#ifndef ADTOPK_CHECKPOINT_H
#define ADTOPK_CHECKPOINT_H

#include <adtopk/adtopk.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Saves what the daemons keep of the job between two steps: residuals, turns, thresholds and
 * velocities. The parameters are yours to save, at the same step. All ranks call it together, after
 * adtopk_commit() or adtopk_step_wait(), before the next step's first push.
 *
 * folder: an existing folder; the library keeps no pointer. The first rank of each node writes the
 * file rank-R.adtopk there, where R is its number, readable for its user only. Ranks of one node
 * name one folder; nodes may have folders of their own, or share one. Nodes that were lost save
 * nothing (members.h). Files of an earlier checkpoint are replaced when all new ones are on their
 * disks. Then those of lower ranks than all that take part are removed from the folder of the
 * lowest: such files are of an earlier checkpoint, too. A machine that stops at just that
 * moment may leave files of both, which adtopk_checkpoint_load() refuses: use a folder per
 * checkpoint where that matters.
 *
 * Waits for all ranks and the disks; signals do not end it. If another rank has an error this call
 * returns its status and names the rank. After an error that does not end the job nothing has
 * changed, and training may go on. Errors: MEMORY, what ends the job, and
 *
 * - ARGUMENT: folder is NULL or empty, or too long; a residual with a magnitude beyond 2^120.
 * - STATE: the call came before commit, in mid-step or during another collective operation. The
 *   other ranks are not told, and wait for this one.
 * - STATE: the policy was changed or a node was lost meanwhile: save again. Or a GPU has lost its
 *   memory: save again after a step.
 * - MISMATCH: ranks are before different steps.
 * - LOST, DENIED, SYSTEM: there is no such folder, no permission, no space. Names path and reason.
 */
enum adtopk_status adtopk_checkpoint_save(adtopk_context *context, const char *folder);

/**
 * Whether an operator has asked for a checkpoint, with `adtopkctl checkpoint ask`, that is to
 * be saved before the next step. All ranks get the same answer before the same step, so they may
 * act on it together: save the parameters, call adtopk_checkpoint_save(). Ask before every step:
 * the answer is 1 before one step only, and asking costs a read of memory.
 *
 *     adtopk_step_wait(context);
 *     ...                                  apply the updates
 *     adtopk_checkpoint_due(context, &due);
 *     if (due || it is time)               save
 *
 * Call it after adtopk_commit() or adtopk_step_wait(), before the next step's first push. Where
 * ranks have joined (members.h), broadcast the parameters first. due: gets 1 or 0; it is always 0
 * with a daemon that cannot be asked.
 *
 * Errors: what ends the job, ARGUMENT (due is NULL), STATE (before commit; in mid-step). Since
 * version 1.1 of the interface.
 */
enum adtopk_status adtopk_checkpoint_due(adtopk_context *context, int *due);

/**
 * Says that this rank has saved in a way of its own, with adtopk_residual() for example, so that
 * `adtopkctl checkpoint ask` and `stats` can tell operators. After adtopk_checkpoint_save() it is
 * not needed. All ranks call it together, when their files are whole, after adtopk_commit() or
 * adtopk_step_wait(), before the next step's first push.
 *
 * saved: 0 if this rank could not save. Then the call fails on all ranks, and operators hear that
 * the checkpoint was not saved. Training may go on.
 *
 * Waits for all ranks but those of lost nodes; signals do not end it. Errors: MEMORY, what ends the
 * job, and
 *
 * - SYSTEM: `saved` is 0 on some ranks; names them.
 * - STATE: the call came before commit, in mid-step or during another collective operation. The
 *   other ranks are not told, and wait for this one.
 * - STATE: a GPU has lost its memory: save again after a step.
 *
 * Since version 1.1 of the interface.
 */
enum adtopk_status adtopk_checkpoint_saved(adtopk_context *context, int saved);

/** What was loaded. */
struct adtopk_checkpoint {
    /** sizeof(struct adtopk_checkpoint), set before adtopk_checkpoint_load(). */
    size_t size;
    /** Steps that were done when it was saved, those of runs before included. This run still counts
     * its own steps from 0. */
    uint64_t step;
    /** Ranks that took part in the job that saved it: fewer than its world size if nodes were lost
     * (members.h). */
    uint32_t world_size;
    /** 1: this run has the same ranks on the same nodes, in order, so every residual is as it was,
     * bit for bit. 0: residuals were dealt out to the nodes of this run. */
    uint32_t exact;
};

/**
 * Loads what adtopk_checkpoint_save() saved, into a new run of the same model. All ranks call it
 * together, after adtopk_commit(), once, before the first step.
 *
 * folder: as above. A rank needs the file of the first rank of its node. The file of the lowest
 * number in the folder of the lowest rank says which checkpoint it is. If the run has other ranks
 * or nodes than the saved one, the files are dealt out to the nodes, so all nodes must see all
 * files. If updates are means, residuals are then multiplied by the new number of ranks divided by
 * the old one; ranks of lost nodes do not count. The ledger counts the difference as lost
 * (`adtopkctl tensors --json`). The same files always go to the same nodes. What the daemons
 * remember for selecting (thresholds) is taken over only if the policy is the same. checkpoint:
 * gets what was loaded; may be NULL.
 *
 * Every file is checked before anything is changed. If another rank has an error this call returns
 * its status and names the rank. After an error close the context: daemons that have a part of the
 * residuals refuse pushes. Errors: MEMORY, ARGUMENT, what ends the job, and
 *
 * - STATE: before commit; after the first step; a second time; the policy was changed meanwhile.
 * - LOST: a file is missing or damaged; says what is wrong.
 * - MISMATCH: a file is of another model, and the sentence names the tensor; files were not saved
 *   together; ranks name different checkpoints.
 * - DENIED, SYSTEM: no permission, or the file system. Names path and reason.
 */
enum adtopk_status adtopk_checkpoint_load(
    adtopk_context *context, const char *folder, struct adtopk_checkpoint *checkpoint);

#ifdef __cplusplus
}
#endif

#endif
