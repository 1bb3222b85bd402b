"""The C interface 1.1 in ctypes: what adtopk.h and the headers beside it declare, under the same names.

tests/python/test_abi.py compares every structure, number and function with the headers.
"""
import ctypes
import enum
from ctypes import (POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint32, c_uint64,
                    c_void_p)

INTERFACE = (1, 1)  # major and minor version of the header that these declarations follow
MAX_DIMS = 8


class Status(enum.IntEnum):
    """enum adtopk_status, without its prefixes."""
    OK = 0
    NONFINITE = 1
    ARGUMENT = 2
    STATE = 3
    MEMORY = 4
    UNREACHABLE = 5
    DENIED = 6
    MISMATCH = 7
    TIMEOUT = 8
    PEER = 9
    PROTOCOL = 10
    LOST = 11
    SYSTEM = 12
    POLICY = 13
    PENDING = 14
    INTERRUPTED = 15


# Plain numbers, for calls of each step: reading a member of an enumeration takes half as long as such a call.
OK, INTERRUPTED = int(Status.OK), int(Status.INTERRUPTED)


class DType(enum.IntEnum):
    """enum adtopk_dtype: the element type of a tensor's gradients."""
    F32 = 0
    F16 = 1
    BF16 = 2


class Memory(enum.IntEnum):
    """enum adtopk_memory: where a gradient lies."""
    HOST = 0
    CUDA = 1


class Form(enum.IntFlag):
    """enum adtopk_form: what a rank asks for of a tensor, and which attributes of its updates have it."""
    LIST = 1          # index, value
    DENSE = 2         # dense
    DENSE16 = 4       # dense16, of tensors in 16 bits
    PENDING = 8       # pending; with DEVICE Tensor.device_pending has it
    DEVICE = 16       # device_dense, device_dense16
    DEVICE_LIST = 32  # device_index, device_value


class Sized(ctypes.Structure):
    """A structure that begins with its own size, as the library expects it."""

    def __init__(self, **fields):
        super().__init__(**fields)
        self.size = ctypes.sizeof(self)


class Options(Sized):
    """struct adtopk_options."""
    _fields_ = [("size", c_size_t), ("address", c_char_p), ("job", c_char_p), ("run_id", c_char_p),
                ("group", c_char_p), ("rank", c_int), ("has_rank", c_int), ("world_size", c_int),
                ("policy", c_char_p), ("connect_timeout_ms", c_int), ("interruptible", c_int),
                ("key_file", c_char_p), ("server_key", c_char_p), ("answer_timeout_ms", c_int),
                ("return_timeout_ms", c_int), ("first_step", c_uint64), ("comes_back", c_uint64)]


class TensorSpec(Sized):
    """struct adtopk_tensor_spec."""
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("dims", c_int),
                ("shape", c_uint64 * MAX_DIMS), ("forms", c_uint), ("memory", c_int),
                ("global_shape", c_uint64 * MAX_DIMS), ("global_offset", c_uint64 * MAX_DIMS),
                ("device", c_char_p)]


class PushSpec(Sized):
    """struct adtopk_push_spec."""
    _fields_ = [("size", c_size_t), ("tensor", c_uint32), ("memory", c_int), ("gradient", c_void_p),
                ("scale", c_float), ("flags", c_uint32), ("stream", c_void_p),
                ("lookahead", c_float), ("reserved", c_uint32)]


class RawUpdate(Sized):
    """struct adtopk_update; its pointers are plain addresses here, None for NULL."""
    _fields_ = [("size", c_size_t), ("dense", c_void_p), ("index", c_void_p), ("value", c_void_p),
                ("count", c_uint64), ("numel", c_uint64), ("step", c_uint64), ("pending", c_void_p),
                ("pending_dtype", c_int), ("pending_scale", c_float), ("lookahead", c_float),
                ("unpushed", c_uint32), ("dtype16", c_uint32), ("dense16", c_void_p),
                ("device_dense", c_void_p), ("device_dense16", c_void_p),
                ("device_index", c_void_p), ("device_value", c_void_p)]


class LookaheadSpec(Sized):
    """struct adtopk_lookahead_spec."""
    _fields_ = [("size", c_size_t), ("parameters", c_void_p), ("shifted", c_void_p),
                ("second_moment", c_void_p), ("correction", c_float), ("epsilon", c_float),
                ("rate", c_float), ("reserved", c_uint32)]


class RawCheckpoint(Sized):
    """struct adtopk_checkpoint."""
    _fields_ = [("size", c_size_t), ("step", c_uint64), ("world_size", c_uint32),
                ("exact", c_uint32)]


class Verdict(Sized):
    """struct adtopk_verdict; its pointer is an address on the device."""
    _fields_ = [("size", c_size_t), ("word", c_void_p), ("right", c_uint32), ("reserved", c_uint32)]


class DeviceList(Sized):
    """struct adtopk_device_list; its pointers are addresses on the device."""
    _fields_ = [("size", c_size_t), ("count", c_void_p), ("index", c_void_p), ("value", c_void_p),
                ("room", c_uint64)]


class RawMembers(Sized):
    """struct adtopk_members."""
    _fields_ = [("size", c_size_t), ("ranks", c_uint32), ("lost", c_uint32), ("place", c_uint32),
                ("root", c_uint32), ("joined", c_uint64)]


STRUCTURES = {"adtopk_options": Options, "adtopk_tensor_spec": TensorSpec,
              "adtopk_push_spec": PushSpec, "adtopk_update": RawUpdate,
              "adtopk_lookahead_spec": LookaheadSpec, "adtopk_checkpoint": RawCheckpoint,
              "adtopk_verdict": Verdict, "adtopk_device_list": DeviceList,
              "adtopk_members": RawMembers}

ENUMS = {"adtopk_status": Status, "adtopk_dtype": DType, "adtopk_memory": Memory,
         "adtopk_form": Form}

CONTEXT = c_void_p
STATUS = c_int

# Name: (what it returns, its arguments). Memory is passed by its address, c_void_p.
FUNCTIONS = {
    "adtopk_open": (STATUS, [POINTER(Options), POINTER(CONTEXT)]),
    "adtopk_close": (None, [CONTEXT]),
    "adtopk_close_for": (None, [CONTEXT, c_int]),
    "adtopk_rank": (c_int, [CONTEXT]),
    "adtopk_world_size": (c_int, [CONTEXT]),
    "adtopk_job": (c_char_p, [CONTEXT]),
    "adtopk_run_id": (c_char_p, [CONTEXT]),
    "adtopk_message": (c_char_p, [CONTEXT]),
    "adtopk_version": (c_char_p, []),
    "adtopk_register": (STATUS, [CONTEXT, POINTER(TensorSpec), POINTER(c_uint32)]),
    "adtopk_check_device": (STATUS, [CONTEXT, c_char_p]),
    "adtopk_commit": (STATUS, [CONTEXT]),
    "adtopk_commit_for": (STATUS, [CONTEXT, c_int]),
    "adtopk_step": (c_uint64, [CONTEXT]),
    "adtopk_members": (STATUS, [CONTEXT, POINTER(RawMembers)]),
    "adtopk_gradient": (c_void_p, [CONTEXT, c_uint32]),
    "adtopk_push": (STATUS, [CONTEXT, POINTER(PushSpec)]),
    "adtopk_push_tensor": (STATUS, [CONTEXT, c_uint32, c_void_p]),
    "adtopk_step_end": (STATUS, [CONTEXT]),
    "adtopk_wait": (STATUS, [CONTEXT, c_uint32]),
    "adtopk_wait_for": (STATUS, [CONTEXT, c_uint32, c_int]),
    "adtopk_step_wait": (STATUS, [CONTEXT]),
    "adtopk_step_wait_for": (STATUS, [CONTEXT, c_int]),
    "adtopk_descriptor": (STATUS, [CONTEXT, POINTER(c_int)]),
    "adtopk_arm": (STATUS, [CONTEXT]),
    "adtopk_update": (STATUS, [CONTEXT, c_uint32, POINTER(RawUpdate)]),
    "adtopk_residual": (STATUS, [CONTEXT, c_uint32, c_void_p]),
    "adtopk_residual_for": (STATUS, [CONTEXT, c_uint32, c_void_p, c_int]),
    "adtopk_apply_sgd": (None, [c_void_p, POINTER(RawUpdate), c_float]),
    "adtopk_copy_update": (None, [c_void_p, POINTER(RawUpdate)]),
    "adtopk_lookahead": (STATUS, [CONTEXT, c_uint32, POINTER(LookaheadSpec)]),
    "adtopk_broadcast": (STATUS, [CONTEXT, c_void_p, c_size_t, c_int]),
    "adtopk_broadcast_for": (STATUS, [CONTEXT, c_void_p, c_size_t, c_int, c_int]),
    "adtopk_barrier": (STATUS, [CONTEXT]),
    "adtopk_barrier_for": (STATUS, [CONTEXT, c_int]),
    "adtopk_allreduce": (STATUS, [CONTEXT, c_void_p, c_size_t]),
    "adtopk_allreduce_for": (STATUS, [CONTEXT, c_void_p, c_size_t, c_int]),
    "adtopk_checkpoint_due": (STATUS, [CONTEXT, POINTER(c_int)]),
    "adtopk_checkpoint_save": (STATUS, [CONTEXT, c_char_p]),
    "adtopk_checkpoint_saved": (STATUS, [CONTEXT, c_int]),
    "adtopk_checkpoint_load": (STATUS, [CONTEXT, c_char_p, POINTER(RawCheckpoint)]),
    "adtopk_wait_stream": (STATUS, [CONTEXT, c_uint32, c_void_p, POINTER(Verdict)]),
    "adtopk_step_wait_stream": (STATUS, [CONTEXT, c_void_p, POINTER(Verdict)]),
    "adtopk_device_update": (c_void_p, [CONTEXT, c_uint32]),
    "adtopk_device_pending": (c_void_p, [CONTEXT, c_uint32]),
    "adtopk_device_list": (STATUS, [CONTEXT, c_uint32, POINTER(DeviceList)]),
    "adtopk_status_name": (c_char_p, [STATUS]),
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Gives every function of a loaded library its types."""
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library
