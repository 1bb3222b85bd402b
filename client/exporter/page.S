    .section .rodata
    .global page_begin, page_end
page_begin:
#include "page.inc"
page_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
