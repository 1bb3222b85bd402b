/*
 * Slots before a pass: chunks get their homes, and spares are found (slots.h).
 */
#include "kernels/cuda/batch.cuh"

/* An entry of a chunk that was never written is 0. The owner is there first, so that a home never
 * seems to be spare. */
DEVICE void slots_settle(const struct slots *slots, uint64_t *entry, uint32_t stamp, uint32_t home)
{
    if (*entry == 0) {
        slots->owner[home] = slot_owner(slots, entry);
        __threadfence();
        *entry = slot_entry(stamp - 1, home);
    }
}

KERNEL slots_begin(const struct add_batch batch)
{
    if (device_thread() == 0) {
        *batch.slots.found = 0;
        if (batch.velocities.found != NULL) {
            *batch.velocities.found = 0;
        }
    }
    for (uint64_t c = device_thread(); c < batch.chunks; c += device_threads()) {
        const struct add_tensor *const tensor = batch_find(batch.tensor, batch.tensors, c);
        const uint32_t chunk = (uint32_t)(c - tensor->first);
        slots_settle(&batch.slots, &tensor->entry[chunk], tensor->stamp, tensor->home + chunk);
        if (tensor->velocity != NULL) {
            slots_settle(&batch.velocities, &tensor->velocity[chunk], tensor->stamp,
                tensor->momentum.home + chunk);
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
    const uint64_t entry = *slot_owned_by(slots, owner);
    return entry != 0 && slot_of(entry) != slot; /* 0: slots_settle() was killed amid this home */
}

KERNEL slots_spare(const struct add_batch batch)
{
    const struct slots slots = batch.slots;
    for (uint64_t i = slots.first + device_thread(); i < slots.count; i += device_threads()) {
        if (slots_is_spare(&slots, (uint32_t)i)) {
            const uint32_t place = atomicAdd(slots.found, 1u);
            if (place < slots.spares) {
                slots.spare[place] = (uint32_t)i;
            }
        }
    }
}
