/*
 * page.html, which is part of the program. It ends with a NUL.
 */
#ifndef ADTOPK_EXPORTER_PAGE_H
#define ADTOPK_EXPORTER_PAGE_H

extern const char page_begin[], page_end[];

#endif
