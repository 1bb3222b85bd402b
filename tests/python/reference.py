"""Error feedback computed by numpy, for one node: what the daemons must deliver, element by element."""
import numpy

F32 = numpy.float32


def largest(rows, density):
    """For each row a mask of its largest magnitudes; of equal ones, those that come first."""
    count = max(1, int(rows.shape[1] * density))
    order = numpy.argsort(-numpy.abs(rows), axis=1, kind="stable")[:, :count]
    mask = numpy.zeros(rows.shape, bool)
    numpy.put_along_axis(mask, order, True, axis=1)
    return mask


def fibres(array):
    """The entries along axis 1, one fibre a row."""
    return numpy.moveaxis(array, 1, -1).reshape(-1, array.shape[1])


def bf16(values):
    """Rounded to the nearest bfloat16, ties to even."""
    bits = values.view(numpy.uint32).astype(numpy.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(numpy.uint32).view(F32)


class Reference:
    """One node's residual of one tensor."""

    def __init__(self, shape, policy):
        self.residual = numpy.zeros(shape, F32)
        self.policy = policy

    def selected(self, total):
        if total.ndim == 1:
            return numpy.ones(total.shape, bool)
        density = self.policy["density"]
        if self.policy["sparsifier"] == "topk":
            return largest(total.reshape(1, -1), density).reshape(total.shape)
        mask = largest(fibres(total), density)
        moved = numpy.moveaxis(total, 1, -1)
        return numpy.moveaxis(mask.reshape(moved.shape), -1, 1)

    def send(self, gradient):
        total = self.residual + gradient
        sent = numpy.where(self.selected(total), total, F32(0))
        if self.policy["values"] == "bf16" and gradient.ndim > 1:
            sent = bf16(sent)
        self.residual = total - sent
        return sent
