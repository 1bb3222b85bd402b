/*
 * What ranks see of an update: the dense form, the list, and 16-bit forms of both (update.h).
 */
#include "kernels/cuda/batch.cuh"
#include "kernels/cuda/update.h"

DEVICE uint16_t update_narrow(uint32_t dtype, float value)
{
    return dtype == DTYPE_BF16 ? convert_narrow_bf16(value) : convert_narrow_f16(value);
}

DEVICE float update_widen(const struct update_order *order, uint16_t bits)
{
    return order->dtype == DTYPE_BF16 ? convert_bf16(bits) : convert_f16(bits);
}

/* What an element is without the list. */
KERNEL update_elements(const struct update_batch batch)
{
    for (uint64_t i = device_thread(); i < batch.elements; i += device_threads()) {
        const struct update_order *const order =
            batch_find_by(batch.order, batch.orders, i, &update_order::first_element);
        const uint64_t element = i - order->first_element;
        if (element == 0 && order->counted != NULL) {
            *order->counted = order->count;
        }
        if (order->half != NULL) {
            order->half[element] = order->dense != NULL
                                       ? update_narrow(order->dtype, order->dense[element])
                                       : (uint16_t)0;
        } else if (order->dense != NULL) {
            order->dense[element] = 0;
        }
    }
}

DEVICE void update_show(const struct update_order *order, uint64_t entry, uint64_t element)
{
    const float value = order->list.value[entry];
    if (order->dense != NULL) {
        order->dense[element] = value;
    }
    if (order->index != NULL) {
        order->index[entry] = (uint32_t)element;
    }
    if (order->value != NULL) {
        order->value[entry] = value;
    }
}

KERNEL update_entries(const struct update_batch batch)
{
    for (uint64_t i = device_thread(); i < batch.entries; i += device_threads()) {
        const struct update_order *const order = batch_find(batch.order, batch.orders, i);
        const uint64_t entry = i - order->first;
        const uint64_t element = view_element(&order->view, order->list.position[entry]);
        if (order->half == NULL) {
            update_show(order, entry, element);
            continue;
        }
        const uint16_t bits = update_narrow(order->dtype, order->list.value[entry]);
        order->half[element] = bits;
        if (order->index != NULL) {
            order->index[entry] = (uint32_t)element;
        }
        if (order->shown != NULL) {
            order->shown[entry] = update_widen(order, bits);
        }
    }
}

KERNEL update_summed(const struct update_sums batch)
{
    for (uint64_t i = device_thread(); i < batch.elements; i += device_threads()) {
        const struct update_sum *const order = batch_find(batch.order, batch.orders, i);
        const uint64_t element = i - order->first;
        const float value = (0.0f + order->sum[element]) * order->factor;
        order->sum[element] = value;
        for (uint32_t p = 0; p < order->places; p++) {
            if (order->half != 0) {
                ((uint16_t *)order->shown[p])[element] = update_narrow(order->dtype, value);
            } else {
                ((float *)order->shown[p])[element] = value;
            }
            if (element == 0 && order->counted[p] != NULL) {
                *order->counted[p] = UPDATE_NO_LIST;
            }
        }
    }
}
