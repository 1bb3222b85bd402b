/*
 * Slots before a pass: chunks get their homes, and spares are found (slots.h).
 */
#include "kernels/cuda/batch.cuh"

/* An entry of a chunk that was never written is 0. The owner is there first, so that a home never
 * seems to be spare. */
KERNEL slots_begin(const struct add_batch batch)
{
    if (device_thread() == 0) {
        *batch.slots.found = 0;
    }
    for (uint64_t c = device_thread(); c < batch.chunks; c += device_threads()) {
        const struct add_tensor *const tensor = batch_find(batch.tensor, batch.tensors, c);
        const uint32_t chunk = (uint32_t)(c - tensor->first);
        if (tensor->entry[chunk] == 0) {
            const uint32_t home = tensor->home + chunk;
            batch.slots.owner[home] = slot_owner(&batch.slots, &tensor->entry[chunk]);
            __threadfence();
            tensor->entry[chunk] = slot_entry(tensor->stamp - 1, home);
        }
    }
}

/* A home that no chunk has owned yet is kept for its own. */
DEVICE bool slots_is_spare(const struct slots *slots, uint32_t slot)
{
    const uint64_t owner = slots->owner[slot];
    if (owner == 0) {
        return slot >= slots->homes;
    }
    return slot_of(*slot_owned_by(slots, owner)) != slot;
}

KERNEL slots_spare(const struct add_batch batch)
{
    const struct slots slots = batch.slots;
    for (uint64_t i = 1 + device_thread(); i < slots.count; i += device_threads()) {
        if (slots_is_spare(&slots, (uint32_t)i)) {
            const uint32_t place = atomicAdd(slots.found, 1u);
            if (place < slots.spares) {
                slots.spare[place] = (uint32_t)i;
            }
        }
    }
}
