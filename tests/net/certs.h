/*
 * Certificates for tests, made with libcrypto: an authority and what it signs,
 * as PEM files in a directory.
 */
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "support/values.h"

typedef struct cert {
    EVP_PKEY *key;
    X509 *x509;
} cert_t;

static inline void cert_add(X509 *x, int nid, const char *value, X509 *issuer)
{
    X509V3_CTX ctx;

    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    require(e != NULL, "extension %s", value);
    require(X509_add_ext(x, e, -1) == 1, "extension %s", value);
    X509_EXTENSION_free(e);
}

/* names: as OpenSSL writes them, "DNS:a,IP:::1"; NULL: none. ca NULL: signs
 * itself and may sign others. */
static inline cert_t cert_make(const char *const *cn, unsigned cn_count,
                               const char *names, const cert_t *ca)
{
    static long serial = 1;
    cert_t c = {EVP_EC_gen("P-256"), X509_new()};
    X509 *issuer = ca != NULL ? ca->x509 : c.x509;

    require(c.key != NULL && c.x509 != NULL, "key");
    X509_set_version(c.x509, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(c.x509), serial++);
    X509_gmtime_adj(X509_getm_notBefore(c.x509), -3600);
    X509_gmtime_adj(X509_getm_notAfter(c.x509), 24 * 3600);
    X509_NAME *subject = X509_get_subject_name(c.x509);
    for (unsigned i = 0; i < cn_count; i++) {
        require(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                           (const unsigned char *)cn[i], -1, -1,
                                           0) == 1,
                "name %s", cn[i]);
    }
    X509_set_issuer_name(c.x509, X509_get_subject_name(issuer));
    X509_set_pubkey(c.x509, c.key);
    cert_add(c.x509, NID_basic_constraints,
             ca == NULL ? "critical,CA:TRUE" : "CA:FALSE", issuer);
    if (names != NULL) {
        cert_add(c.x509, NID_subject_alt_name, names, issuer);
    }
    require(X509_sign(c.x509, ca != NULL ? ca->key : c.key, EVP_sha256()) > 0,
            "sign");
    return c;
}

static inline cert_t cert_one(const char *cn, const char *names,
                              const cert_t *ca)
{
    return cert_make(&cn, 1, names, ca);
}

static inline void cert_free(cert_t *c)
{
    EVP_PKEY_free(c->key);
    X509_free(c->x509);
}

/* Writes DIR/NAME.pem and DIR/NAME.key; with a passphrase if given. */
static inline void cert_save(const cert_t *c, const char *dir, const char *name,
                             const char *passphrase)
{
    char path[400];

    snprintf(path, sizeof(path), "%s/%s.pem", dir, name);
    FILE *f = fopen(path, "w");
    require(f != NULL && PEM_write_X509(f, c->x509) == 1, "%s", path);
    fclose(f);
    snprintf(path, sizeof(path), "%s/%s.key", dir, name);
    f = fopen(path, "w");
    require(f != NULL &&
                PEM_write_PrivateKey(
                    f, c->key, passphrase != NULL ? EVP_aes_128_cbc() : NULL,
                    (const unsigned char *)passphrase,
                    passphrase != NULL ? (int)strlen(passphrase) : 0, NULL,
                    NULL) == 1,
            "%s", path);
    fclose(f);
}
