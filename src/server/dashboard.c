/* The dashboard's page, taken into the program as it is. LDR_DASHBOARD is its
 * path, set by the build. */
#include "server/admin.h"

__asm__(".section .rodata\n"
        ".globl ldr_dashboard_page\n"
        ".hidden ldr_dashboard_page\n"
        "ldr_dashboard_page:\n"
        ".incbin \"" LDR_DASHBOARD "\"\n"
        "ldr_dashboard_page_end:\n"
        ".byte 0\n"
        ".balign 8\n"
        ".globl ldr_dashboard_bytes\n"
        ".hidden ldr_dashboard_bytes\n"
        "ldr_dashboard_bytes:\n"
        ".quad ldr_dashboard_page_end - ldr_dashboard_page\n"
        ".previous\n");
