/*
 * Logins of the back ends that need one. A login file has lines NAME=VALUE;
 * empty lines and those that begin with # do not count. It is read again at
 * each use, so that a password can be changed while a node runs. What is read
 * is the caller's to cleanse; no value ever stands in a message.
 */
#pragma once

#include <stddef.h>

#include "larder/larder.h"

#define LDR_LOGIN_VALUE 2048u /* a session token is long */

/* value[LDR_LOGIN_VALUE] of the name, from the file or, where path is "", from
 * the variable of the environment; "" if there is none. E_INVALID with a text:
 * the file cannot be read, everybody may read it, or it is no login file. */
larder_status_t ldr_login_get(const char *path, const char *name,
                              const char *variable, char *value);
