/*
 * The shared tier in an S3 store: urls, what servers say, and servers that talk
 * nonsense. test_s3_server.c has a real one.
 */
#include "tier/shared/s3_rig.h"

#if defined(__has_include)
#if __has_include(<curl/curl.h>)
#include <curl/curl.h>
#define HAVE_CURL_H 1
#endif
#endif

#include "net/curl.h"

/* ---- libcurl ---- */

static void test_curl(void **s)
{
    (void)s;
    if (ldr_curl_load("S3", LDR_CURL_SIGNS) != LARDER_OK) {
        fail_msg("%s", ldr_fail_text());
    }
#ifdef HAVE_CURL_H
#define SAME(ours, theirs) assert_int_equal((int)(ours), (int)(theirs))
    SAME(LDR_CURLOPT_WRITEDATA, CURLOPT_WRITEDATA);
    SAME(LDR_CURLOPT_POSTFIELDS, CURLOPT_POSTFIELDS);
    SAME(LDR_CURLOPT_POSTFIELDSIZE, CURLOPT_POSTFIELDSIZE);
    SAME(LDR_CURLOPT_SSLCERT, CURLOPT_SSLCERT);
    SAME(LDR_CURLOPT_SSLKEY, CURLOPT_SSLKEY);
    SAME(LDR_CURLOPT_NOPROXY, CURLOPT_NOPROXY);
    SAME(LDR_CURLOPT_NOPROGRESS, CURLOPT_NOPROGRESS);
    SAME(LDR_CURLOPT_XFERINFODATA, CURLOPT_XFERINFODATA);
    SAME(LDR_CURLOPT_XFERINFOFUNCTION, CURLOPT_XFERINFOFUNCTION);
    SAME(LDR_CURLE_WRITE, CURLE_WRITE_ERROR);
    SAME(LDR_CURLE_ABORTED, CURLE_ABORTED_BY_CALLBACK);
    SAME(LDR_CURLOPT_URL, CURLOPT_URL);
    SAME(LDR_CURLOPT_RANGE, CURLOPT_RANGE);
    SAME(LDR_CURLOPT_READDATA, CURLOPT_READDATA);
    SAME(LDR_CURLOPT_ERRORBUFFER, CURLOPT_ERRORBUFFER);
    SAME(LDR_CURLOPT_USERAGENT, CURLOPT_USERAGENT);
    SAME(LDR_CURLOPT_HTTPHEADER, CURLOPT_HTTPHEADER);
    SAME(LDR_CURLOPT_HEADERDATA, CURLOPT_HEADERDATA);
    SAME(LDR_CURLOPT_CUSTOMREQUEST, CURLOPT_CUSTOMREQUEST);
    SAME(LDR_CURLOPT_CAINFO, CURLOPT_CAINFO);
    SAME(LDR_CURLOPT_SEEKDATA, CURLOPT_SEEKDATA);
    SAME(LDR_CURLOPT_USERNAME, CURLOPT_USERNAME);
    SAME(LDR_CURLOPT_PASSWORD, CURLOPT_PASSWORD);
    SAME(LDR_CURLOPT_AWS_SIGV4, CURLOPT_AWS_SIGV4);
    SAME(LDR_CURLOPT_WRITEFUNCTION, CURLOPT_WRITEFUNCTION);
    SAME(LDR_CURLOPT_READFUNCTION, CURLOPT_READFUNCTION);
    SAME(LDR_CURLOPT_HEADERFUNCTION, CURLOPT_HEADERFUNCTION);
    SAME(LDR_CURLOPT_SEEKFUNCTION, CURLOPT_SEEKFUNCTION);
    SAME(LDR_CURLOPT_LOW_SPEED_LIMIT, CURLOPT_LOW_SPEED_LIMIT);
    SAME(LDR_CURLOPT_LOW_SPEED_TIME, CURLOPT_LOW_SPEED_TIME);
    SAME(LDR_CURLOPT_NOBODY, CURLOPT_NOBODY);
    SAME(LDR_CURLOPT_UPLOAD, CURLOPT_UPLOAD);
    SAME(LDR_CURLOPT_HTTP_VERSION, CURLOPT_HTTP_VERSION);
    SAME(LDR_CURLOPT_BUFFERSIZE, CURLOPT_BUFFERSIZE);
    SAME(LDR_CURLOPT_NOSIGNAL, CURLOPT_NOSIGNAL);
    SAME(LDR_CURLOPT_TIMEOUT_MS, CURLOPT_TIMEOUT_MS);
    SAME(LDR_CURLOPT_CONNECTTIMEOUT_MS, CURLOPT_CONNECTTIMEOUT_MS);
    SAME(LDR_CURLOPT_PROTOCOLS, 181); /* deprecated, and kept */
    SAME(LDR_CURLOPT_TCP_KEEPALIVE, CURLOPT_TCP_KEEPALIVE);
    SAME(LDR_CURLOPT_UPLOAD_BUFFERSIZE, CURLOPT_UPLOAD_BUFFERSIZE);
    SAME(LDR_CURLOPT_INFILESIZE_LARGE, CURLOPT_INFILESIZE_LARGE);
    SAME(LDR_CURLINFO_RESPONSE_CODE, CURLINFO_RESPONSE_CODE);
    SAME(LDR_CURLINFO_OS_ERRNO, CURLINFO_OS_ERRNO);
    SAME(LDR_CURLINFO_CONTENT_LENGTH, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T);
    SAME(LDR_CURL_GLOBAL_DEFAULT, CURL_GLOBAL_DEFAULT);
    SAME(LDR_CURL_HTTP_1_1, CURL_HTTP_VERSION_1_1);
    SAME(LDR_CURLE_NO_PROXY, CURLE_COULDNT_RESOLVE_PROXY);
    SAME(LDR_CURLE_NO_HOST, CURLE_COULDNT_RESOLVE_HOST);
    SAME(LDR_CURLE_NO_CONNECT, CURLE_COULDNT_CONNECT);
    SAME(LDR_CURLE_PARTIAL, CURLE_PARTIAL_FILE);
    SAME(LDR_CURLE_NO_MEMORY, CURLE_OUT_OF_MEMORY);
    SAME(LDR_CURLE_TIMEOUT, CURLE_OPERATION_TIMEDOUT);
    SAME(LDR_CURLE_NOTHING, CURLE_GOT_NOTHING);
    SAME(LDR_CURLE_SEND, CURLE_SEND_ERROR);
    SAME(LDR_CURLE_RECV, CURLE_RECV_ERROR);
    SAME(LDR_CURLE_CERTIFICATE, CURLE_PEER_FAILED_VERIFICATION);
    SAME(LDR_CURLE_CA_FILE, CURLE_SSL_CACERT_BADFILE);
    SAME(offsetof(ldr_curl_version_t, number),
         offsetof(curl_version_info_data, version_num));
#endif
}

/* ---- the url ---- */

static void test_urls(void **s)
{
    static const char *const good[] = {
        "s3://bucket",
        "s3://bucket/",
        "s3://a.b-c9/kv/prod/",
        "s3://bucket?endpoint=http://[::1]:9000",
        "s3://bucket/p?endpoint=https://s3.example/&region=eu-west-1&ca=/a/b",
        "s3://bucket/p?endpoint=https%3A%2F%2Fh:1",
    };
    static const char *const bad[] = {
        "s3://",
        "s3://ab",
        "s3://Bucket",
        "s3://.bucket",
        "s3://bucket//p",
        "s3://bucket/P",
        "s3://bucket/../p",
        "s3://bucket?endpoint=",
        "s3://bucket?endpoint=ftp://h",
        "s3://bucket?endpoint=https://",
        "s3://bucket?endpoint=https://h/path",
        "s3://bucket?endpoint=https://me@h",
        "s3://bucket?region=a/b",
        "s3://bucket?what=1",
        "s3://bucket?region=a&region=b",
    };

    (void)s;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ldr_backend_t *b = open_url(good[i], "");
        b->ops->destroy(b);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const ldr_backend_params_t p = {.url = bad[i], .login = ""};
        ldr_backend_t *b = NULL;

        if (ldr_backend_open(&p, &b) != LARDER_E_INVALID) {
            fail_msg("%s was taken", bad[i]);
        }
        assert_non_null(strstr(ldr_fail_text(), "s3://BUCKET"));
    }
}

/* ---- what servers say ---- */

static int add_key(void *arg, const char *key, size_t bytes, uint64_t size)
{
    char *all = arg;
    size_t at = strlen(all);

    snprintf(all + at, 400 - at, "%.*s=%llu;", (int)bytes, key,
             (unsigned long long)size);
    return 0;
}

#define LIST(inside)                                                           \
    "<?xml version='1.0' encoding='UTF-8'?>\n"                                 \
    "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"     \
    "<Name>b</Name><Prefix/>" inside "</ListBucketResult>\n"
#define KEY(key, size)                                                         \
    "<Contents><Key>" key "</Key><LastModified>x</LastModified><ETag>&quot;"   \
    "e&quot;</ETag><Size>" size "</Size><Owner><ID>1</ID></Owner></Contents>"

static void test_pages(void **s)
{
    static const struct {
        const char *text;
        const char *keys;  /* NULL: it is no page */
        const char *token; /* NULL: the last */
    } table[] = {
        {LIST("<IsTruncated>false</IsTruncated>"), "", NULL},
        {LIST(KEY("a/b", "12")
                  KEY("c", "0") "<IsTruncated> false</IsTruncated>"),
         NULL, NULL},
        {LIST(KEY("a/b", "12")
                  KEY("c", "0") "<IsTruncated>false</IsTruncated>"),
         "a/b=12;c=0;", NULL},
        {LIST(KEY("a&amp;b", "12") KEY("c", "3") "<IsTruncated>true</"
                                                 "IsTruncated><"
                                                 "NextContinuationToken>x&amp;"
                                                 "&#43;/&#x3d;</"
                                                 "NextContinuationToken>"),
         "c=3;", "x&+/="},
        {LIST("<IsTruncated>true</IsTruncated>"), NULL, NULL},
        {LIST(KEY("a", "12")), NULL, NULL},
        {LIST(KEY("a", "-1") "<IsTruncated>false</IsTruncated>"), NULL, NULL},
        {LIST(KEY("a", "1x") "<IsTruncated>false</IsTruncated>"), NULL, NULL},
        {LIST(KEY("a", "99999999999999999999") "<IsTruncated>false</"
                                               "IsTruncated>"),
         NULL, NULL},
        {LIST("<Contents><Key>a</Key></Contents><IsTruncated>false</"
              "IsTruncated>"),
         NULL, NULL},
        {LIST("<Contents><Key><b>a</b></Key><Size>1</Size></Contents>"
              "<IsTruncated>false</IsTruncated>"),
         NULL, NULL},
        {LIST("<!-- x --><IsTruncated>false</IsTruncated>"), NULL, NULL},
        {LIST("<![CDATA[x]]><IsTruncated>false</IsTruncated>"), NULL, NULL},
        /* What nobody asked for may look as it likes. */
        {LIST("<a><b><c><d><e><f><g><h/></g></f></e></d></c></b></a>"
              "<IsTruncated>false</IsTruncated><NextContinuationToken/>"),
         "", NULL},
        {LIST("<IsTruncated>false</IsTruncate>"), NULL, NULL},
        {LIST("<IsTruncated>false</IsTruncated>") "<", NULL, NULL},
        {"<!DOCTYPE x><ListBucketResult/>", NULL, NULL},
        {"<ListBucketResult><IsTruncated>false</IsTruncated>", NULL, NULL},
        {"<Error><Code>NoSuchKey</Code></Error>", NULL, NULL},
        {"", NULL, NULL},
        {"x", NULL, NULL},
        {"<", NULL, NULL},
        {"<?xml", NULL, NULL},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        char keys[400] = "";
        ldr_s3_page_t page = {.fn = add_key, .arg = keys};
        bool ok =
            ldr_s3_page_parse(table[i].text, strlen(table[i].text), &page);

        if (ok != (table[i].keys != NULL)) {
            fail_msg("%s", table[i].text);
        }
        if (ok) {
            assert_string_equal(keys, table[i].keys);
            assert_int_equal(page.truncated, table[i].token != NULL);
            assert_string_equal(page.token,
                                table[i].token != NULL ? table[i].token : "");
        }
    }
}

static void test_errors(void **s)
{
    static const struct {
        long status;
        const char *body;
        const char *code;
        int error;
    } table[] = {
        {200, "", "", 0},
        {204, "", "", 0},
        {404, "<Error><Code>NoSuchKey</Code></Error>", "NoSuchKey", -ENOENT},
        {404, "<Error><Code>NoSuchBucket</Code><Message>x</Message></Error>",
         "NoSuchBucket", -ENODEV},
        {404, "", "", -ENOENT},
        {403, "<Error><Code>SignatureDoesNotMatch</Code></Error>",
         "SignatureDoesNotMatch", -EACCES},
        {403, "<Error><Code>QuotaExceeded</Code></Error>", "QuotaExceeded",
         -ENOSPC},
        {403, "<Error><Code>\x1b[2J</Code></Error>", "", -EACCES},
        {412, "<html>", "", -EEXIST},
        {416, "", "", -ENODATA},
        {503, "<Error><Code>SlowDown</Code></Error>", "SlowDown", -EBUSY},
        {500, "", "", -EIO},
        {302, "", "", -EIO},
        {0, "", "", -EIO},
    };
    uint64_t first, last;
    char code[64];

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        ldr_s3_error_code(table[i].body, strlen(table[i].body), code,
                          sizeof(code));
        assert_string_equal(code, table[i].code);
        assert_int_equal(ldr_s3_errno(table[i].status, code), table[i].error);
    }
    assert_true(ldr_s3_content_range("bytes 5-9/100", 13, &first, &last));
    assert_true(first == 5 && last == 9);
    assert_true(ldr_s3_content_range("bytes 0-0/*", 11, &first, &last));
    assert_false(ldr_s3_content_range("bytes */100", 11, &first, &last));
    assert_false(ldr_s3_content_range("bytes 9-5/100", 13, &first, &last));
    assert_false(ldr_s3_content_range("bytes 5-9", 9, &first, &last));
    assert_false(ldr_s3_content_range("5-9/100", 7, &first, &last));
    assert_false(ldr_s3_content_range("", 0, &first, &last));
}

/* ---- nonsense ---- */

static int count_one(void *arg, const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
    ++*(unsigned *)arg;
    return 0;
}

#define CLOSE "Connection: close\r\n\r\n"
#define PART(length, range)                                                    \
    "HTTP/1.1 206 Partial Content\r\nContent-Length: " length                  \
    "\r\nContent-Range: " range "\r\n" CLOSE

static void test_nonsense(void **s)
{
    static const struct {
        const char *answer;
        int get, list;
    } table[] = {
        {"", -ECONNRESET, -ECONNRESET},
        {"what?\r\n\r\n", -EPROTO, -EPROTO},
        {"$4\r\nabcd\r\n", -EPROTO, -EPROTO},
        {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n" CLOSE "abcd", -EPROTO,
         -EPROTO},
        {PART("4", "bytes 8-11/100") "abcd", 0, -EPROTO},
        {PART("4", "bytes 0-3/100") "abcd", -EPROTO, -EPROTO},
        {PART("4", "nothing") "abcd", -EPROTO, -EPROTO},
        {PART("5", "bytes 8-12/100") "abcde", -EPROTO, -EPROTO},
        {PART("4", "bytes 8-11/100") "ab", -ECONNRESET, -ECONNRESET},
        {PART("2", "bytes 8-9/10") "ab", -ENODATA, -EPROTO},
        {"HTTP/1.1 404 No\r\nContent-Length: 0\r\n" CLOSE, -ENOENT, -ENODEV},
        {"HTTP/1.1 404 No\r\n" CLOSE "<Error><Code>NoSuchBucket</Code></Error>",
         -ENODEV, -ENODEV},
        {"HTTP/1.1 403 No\r\n" CLOSE "no", -EACCES, -EACCES},
        {"HTTP/1.1 301 No\r\nLocation: http://127.0.0.1:1/\r\n" CLOSE, -ENOTSUP,
         -ENOTSUP},
        {"HTTP/1.1 200 OK\r\n" CLOSE LIST("<IsTruncated>false</IsTruncated>"),
         -EPROTO, 0},
        {"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n" CLOSE "<ListBu", -EPROTO,
         -ECONNRESET},
        {"HTTP/1.1 200 OK\r\n" CLOSE LIST(
             KEY("kv/a/t/x", "5") KEY("kv/a/u/x", "5")
                 KEY("other", "5") "<IsTruncated>false</IsTruncated>"),
         -EPROTO, 0},
    };
    uint8_t data[4];
    struct iovec iov = {data, sizeof(data)};

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        fake_t f = {0};
        unsigned names = 0;
        fake_start(&f, table[i].answer, strlen(table[i].answer));
        ldr_backend_t *b = open_at(f.port, BUCKET, right_login());
        int error = b->ops->get(b, "t/a", 8, &iov, 1, in_ms(30000));

        if (error != table[i].get) {
            fail_msg("get %.60s: %d: %s", table[i].answer, error,
                     ldr_fail_text());
        }
        error = b->ops->list(b, "t/", NULL, count_one, &names, in_ms(30000));
        if (error != table[i].list) {
            fail_msg("list %.60s: %d: %s", table[i].answer, error,
                     ldr_fail_text());
        }
        assert_true(names <= 1);
        b->ops->destroy(b);
        fake_end(&f);
    }
}

/* One that takes the question and says nothing, or a byte at a time. */
static void test_slow(void **s)
{
    fake_t f = {.hold = true};
    uint8_t data[4];
    struct iovec iov = {data, sizeof(data)};
    static const char answer[] = PART("4", "bytes 8-11/100") "abcd";

    (void)s;
    fake_start(&f, "", 0);
    ldr_backend_t *b = open_at(f.port, BUCKET, right_login());
    uint64_t before = real_now_ms();
    check_says(b->ops->get(b, "t/a", 8, &iov, 1, in_ms(300)), -ETIMEDOUT);
    check_says(b->ops->put(b, "t/a", &iov, 1, 0, in_ms(300)), -ETIMEDOUT);
    check_says(b->ops->health(b, in_ms(300)), -ETIMEDOUT);
    assert_true(real_now_ms() - before < 20000);
    check_says(b->ops->health(b, 1), -ETIMEDOUT);
    b->ops->destroy(b);
    fake_end(&f);

    f.dribble = true;
    fake_start(&f, answer, sizeof(answer) - 1);
    b = open_at(f.port, BUCKET, right_login());
    check_says(b->ops->get(b, "t/a", 8, &iov, 1, in_ms(300)), -ETIMEDOUT);
    assert_int_equal(b->ops->get(b, "t/a", 8, &iov, 1, in_ms(30000)), 0);
    assert_memory_equal(data, "abcd", 4);
    b->ops->destroy(b);
    fake_end(&f);

    b = open_at(server_port(), BUCKET, right_login());
    check_says(b->ops->health(b, in_ms(30000)), -ECONNREFUSED);
    b->ops->destroy(b);
}

/* ---- puts that are new ---- */

/* What becomes of a put of a new name where each request is answered alike:
 * the first is that of the probe. */
static void test_new(void **s)
{
    static const struct {
        const char *answer;
        int error, conditional;
    } table[] = {
        {"HTTP/1.1 412 No\r\nContent-Length: 0\r\n" CLOSE, -EEXIST,
         LDR_S3_CONDITIONAL},
        /* Taken twice: it is not looked at. And HEAD says that it is there. */
        {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" CLOSE, -EEXIST, LDR_S3_NOT},
        {"HTTP/1.1 501 No\r\nContent-Length: 0\r\n" CLOSE, -ENOTSUP,
         LDR_S3_NOT},
        {"HTTP/1.1 403 No\r\nContent-Length: 0\r\n" CLOSE, -EACCES,
         LDR_S3_UNKNOWN},
        {"HTTP/1.1 409 No\r\nContent-Length: 0\r\n" CLOSE, -EBUSY,
         LDR_S3_UNKNOWN},
        {"HTTP/1.1 503 No\r\nContent-Length: 0\r\n" CLOSE, -EBUSY,
         LDR_S3_UNKNOWN},
    };

    (void)s;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        fake_t f = {0};
        fake_start(&f, table[i].answer, strlen(table[i].answer));
        ldr_backend_t *b = open_at(f.port, BUCKET, right_login());

        check_says(contract_put(b, "t/a", 10, LDR_OBJECT_NEW), table[i].error);
        assert_int_equal(atomic_load(&((ldr_s3_t *)b)->conditional),
                         table[i].conditional);
        b->ops->destroy(b);
        fake_end(&f);
    }
}

/* Headers of AWS go into the signature, the session's token too. */
static void test_signed(void **s)
{
    static const char answer[] =
        "HTTP/1.1 404 No\r\nContent-Length: 0\r\n" CLOSE;
    fake_t f = {0};
    uint64_t bytes;

    (void)s;
    fake_start(&f, answer, sizeof(answer) - 1);
    ldr_backend_t *b = open_at(f.port, BUCKET,
                               login_file("access_key=k\nsecret_key=" SECRET
                                          "\nsession_token=the-token\n"));
    check_says(b->ops->size(b, "t/a", &bytes, in_ms(30000)), -ENOENT);
    b->ops->destroy(b);
    fake_end(&f);
    assert_non_null(strstr(f.question, "HEAD /" BUCKET "/kv/a/t/a HTTP/1.1"));
    assert_non_null(
        strstr(f.question, "\r\nx-amz-security-token: the-token\r"));
    assert_non_null(strstr(f.question, "x-amz-content-sha256;x-amz-date;"
                                       "x-amz-security-token"));
    assert_null(strstr(f.question, SECRET));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_curl),     cmocka_unit_test(test_urls),
        cmocka_unit_test(test_pages),    cmocka_unit_test(test_errors),
        cmocka_unit_test(test_nonsense), cmocka_unit_test(test_slow),
        cmocka_unit_test(test_new),      cmocka_unit_test(test_signed),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
