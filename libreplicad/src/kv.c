/* kv.c: the rendezvous of an epoch, served through the daemon. Each call may be made again after RP_EGONE and rp_reconnect, or after
 * RP_ETIMEOUT: reads change nothing, barriers count ranks, and a write that is made again has the number it had. */
#include <string.h>

#include "internal.h"

static int check(rp_handle *h, const char *call, const char *key, size_t value, int64_t timeout_ns, int64_t *deadline, rp_error *err) {
	*deadline = rpi_deadline(timeout_ns);
	if (*deadline < 0)
		return rpi_error(err, RP_EINVAL, "%s: timeout %lld ns is negative", call, (long long)timeout_ns);
	size_t n = key ? strnlen(key, RPI_MAX_KEY + 1) : 0;
	if (n == 0 || n > RPI_MAX_KEY)
		return rpi_error(err, RP_EINVAL, "%s: want a key of 1 to %u bytes", call, RPI_MAX_KEY);
	if (value > RPI_MAX_VALUE)
		return rpi_error(err, RP_EINVAL, "%s: value of %zu bytes, at most %u", call, value, RPI_MAX_VALUE);
	uint64_t scope = atomic_load(&h->scope);
	if (scope == 0)
		return rpi_error(err, RP_ESTATE, "%s: before rp_join or rp_scope has named an epoch", call);
	if (rpi_closed(h, scope))
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join, or rp_scope for the one to come", (unsigned long long)scope);
	return RP_OK;
}

/* The number of a write: a new one, or that of the newest write if it is this one and was not answered. */
static uint32_t number(rp_handle *h, uint16_t type, rp_kv head, const char *key, struct iovec value[2]) {
	uint8_t part[16], digest[16];
	h->hash->digest(value[0].iov_base, value[0].iov_len, value[1].iov_base, value[1].iov_len, part);
	h->hash->digest(part, sizeof part, key, head.key_bytes, digest);
	head.once = h->wrote.once;
	if (h->wrote_type != type || h->wrote_scope != atomic_load(&h->scope) || memcmp(&head, &h->wrote, sizeof head) || memcmp(digest, h->wrote_digest, sizeof digest)) {
		h->once += h->once == UINT32_MAX ? 2 : 1; /* 0 is no number */
		head.once = h->once;
	}
	h->wrote = head, h->wrote_type = type, h->wrote_scope = atomic_load(&h->scope);
	memcpy(h->wrote_digest, digest, sizeof digest);
	return head.once;
}

/* Sends a request of one or two values and takes the reply, of at least `least` bytes, which begins with a code. */
static int ask(rp_handle *h, uint16_t type, const char *key, struct iovec value[2], uint32_t members, uint16_t want, uint32_t least, int64_t deadline, rp_error *err) {
	rp_kv head = {.key_bytes = (uint32_t)strlen(key), .value_bytes = (uint32_t)(value[0].iov_len + value[1].iov_len), .members = members};
	bool write = type == RP_M_KV_SET || type == RP_M_KV_ADD || type == RP_M_KV_COMPARE_SET || type == RP_M_KV_DELETE;
	if (write)
		head.once = number(h, type, head, key, value);
	struct iovec body[4] = {{&head, sizeof head}, {(void *)(uintptr_t)key, head.key_bytes}, value[0], value[1]};
	int rc = rpi_request(h, type, body, 4, want, deadline, err);
	if (write && rc != RP_ETIMEOUT && rc != RP_EGONE)
		h->wrote_type = 0;
	if (rc != RP_OK)
		return rc;
	int32_t code;
	if (h->reply.length < least)
		return rpi_error(err, RP_EVERSION, "the daemon's answer has %u bytes, want at least %u", h->reply.length, least);
	memcpy(&code, h->reply.body, sizeof code);
	if (code == RP_OK)
		return RP_OK;
	return rpi_error(err, code < 0 && code >= RP_ECANCELED ? code : RP_EREFUSED, "key %s: %s", key, rp_strerror(code));
}

static struct iovec bytes(const void *p, size_t n) { return (struct iovec){n ? (void *)(uintptr_t)p : "", n}; }
#define NOTHING (struct iovec[2]){bytes(NULL, 0), bytes(NULL, 0)}

/* Hands out the value of a reply. */
static int take(rp_handle *h, const char *key, void *value, size_t *n, rp_error *err) {
	uint32_t length;
	memcpy(&length, h->reply.body + 4, sizeof length);
	if (length > h->reply.length - 8)
		return rpi_error(err, RP_EVERSION, "key %s: the daemon says %u bytes and sent %u", key, length, h->reply.length - 8);
	size_t room = *n;
	*n = length;
	if (length > room)
		return rpi_error(err, RP_EINVAL, "key %s: its value has %u bytes, room is for %zu", key, length, room);
	if (length)
		memcpy(value, h->reply.body + 8, length);
	return RP_OK;
}

RP_API int rp_scope(rp_handle *h, uint64_t *epoch, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline = rpi_deadline(timeout_ns);
	if (deadline < 0)
		return rpi_error(err, RP_EINVAL, "rp_scope: timeout %lld ns is negative", (long long)timeout_ns);
	int rc = atomic_load(&h->life) == RPI_OPEN ? rpi_greet_again(h, deadline, err) : RP_OK;
	if (rc == RP_OK)
		rc = rpi_request(h, RP_M_SCOPE, NULL, 0, RP_M_SCOPED, deadline, err);
	if (rc != RP_OK)
		return rc;
	uint64_t named = 0;
	if (h->reply.length == sizeof named)
		memcpy(&named, h->reply.body, sizeof named);
	if (!named)
		return rpi_error(err, RP_EVERSION, "the daemon's answer to rp_scope has %u bytes, want %zu and an epoch", h->reply.length, sizeof named);
	atomic_store(&h->scope, named);
	if (epoch)
		*epoch = named;
	return RP_OK;
}

RP_API int rp_kv_set(rp_handle *h, const char *key, const void *value, size_t n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_kv_set", key, n, timeout_ns, &deadline, err);
	if (rc == RP_OK && n && !value)
		rc = rpi_error(err, RP_EINVAL, "rp_kv_set: value is NULL");
	struct iovec is[2] = {bytes(value, n), bytes(NULL, 0)};
	return rc == RP_OK ? ask(h, RP_M_KV_SET, key, is, 0, RP_M_KV_OK, 8, deadline, err) : rc;
}

RP_API int rp_kv_get(rp_handle *h, const char *key, void *value, size_t *n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_kv_get", key, 0, timeout_ns, &deadline, err);
	if (rc == RP_OK && (!n || (*n && !value)))
		rc = rpi_error(err, RP_EINVAL, "rp_kv_get: value or its size is NULL");
	if (rc == RP_OK)
		rc = ask(h, RP_M_KV_GET, key, NOTHING, 0, RP_M_KV_VALUE, 8, deadline, err);
	return rc == RP_OK ? take(h, key, value, n, err) : rc;
}

RP_API int rp_kv_check(rp_handle *h, const char *key, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_kv_check", key, 0, timeout_ns, &deadline, err);
	return rc == RP_OK ? ask(h, RP_M_KV_CHECK, key, NOTHING, 0, RP_M_KV_OK, 8, deadline, err) : rc;
}

/* Asks for what is answered by a number. */
static int total_of(rp_handle *h, uint16_t type, const char *key, struct iovec value[2], int64_t *total, int64_t deadline, rp_error *err) {
	int rc = ask(h, type, key, value, 0, RP_M_KV_TOTAL, 16, deadline, err);
	if (rc == RP_OK)
		memcpy(total, h->reply.body + 8, sizeof *total);
	return rc;
}

RP_API int rp_kv_add(rp_handle *h, const char *key, int64_t delta, int64_t *total, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline, ignored;
	int rc = check(h, "rp_kv_add", key, 0, timeout_ns, &deadline, err);
	struct iovec is[2] = {bytes(&delta, sizeof delta), bytes(NULL, 0)};
	return rc == RP_OK ? total_of(h, RP_M_KV_ADD, key, is, total ? total : &ignored, deadline, err) : rc;
}

RP_API int rp_kv_delete(rp_handle *h, const char *key, int *deleted, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline, total = 0;
	int rc = check(h, "rp_kv_delete", key, 0, timeout_ns, &deadline, err);
	if (rc == RP_OK)
		rc = total_of(h, RP_M_KV_DELETE, key, NOTHING, &total, deadline, err);
	if (deleted)
		*deleted = rc == RP_OK && total == 1;
	return rc;
}

RP_API int rp_kv_compare_set(rp_handle *h, const char *key, const void *expected, size_t expected_n, const void *desired, size_t desired_n, void *value, size_t *n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	if (expected_n > RPI_MAX_VALUE || desired_n > RPI_MAX_VALUE)
		return rpi_error(err, RP_EINVAL, "rp_kv_compare_set: values of %zu and %zu bytes, at most %u together", expected_n, desired_n, RPI_MAX_VALUE);
	int rc = check(h, "rp_kv_compare_set", key, expected_n + desired_n, timeout_ns, &deadline, err);
	if (rc == RP_OK && ((expected_n && !expected) || (desired_n && !desired) || !n || (*n && !value)))
		rc = rpi_error(err, RP_EINVAL, "rp_kv_compare_set: a value or its size is NULL");
	struct iovec is[2] = {bytes(expected, expected_n), bytes(desired, desired_n)};
	if (rc == RP_OK)
		rc = ask(h, RP_M_KV_COMPARE_SET, key, is, (uint32_t)expected_n, RP_M_KV_VALUE, 8, deadline, err);
	return rc == RP_OK ? take(h, key, value, n, err) : rc;
}

RP_API int rp_barrier(rp_handle *h, const char *name, uint32_t members, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_barrier", name, 0, timeout_ns, &deadline, err);
	if (rc == RP_OK && members == 0)
		rc = rpi_error(err, RP_EINVAL, "rp_barrier %s: 0 members", name);
	return rc == RP_OK ? ask(h, RP_M_BARRIER, name, NOTHING, members, RP_M_KV_OK, 8, deadline, err) : rc;
}
