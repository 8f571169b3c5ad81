/* kv.c: the rendezvous of an epoch, served through the daemon. Each call is idempotent: after RP_EGONE and rp_reconnect call again. */
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
	if (!h->control || atomic_load(&h->epoch) == 0)
		return rpi_error(err, RP_ESTATE, "%s: before rp_join has named an epoch", call);
	if (rp_fenced(h))
		return rpi_error(err, RP_EFENCED, "epoch %llu is closed: rp_join", (unsigned long long)atomic_load(&h->epoch));
	return RP_OK;
}

static int ask(rp_handle *h, uint16_t type, const char *key, const void *value, size_t n, uint32_t members, uint16_t want, int64_t deadline, rp_error *err) {
	rp_kv head = {.key_bytes = (uint32_t)strlen(key), .value_bytes = (uint32_t)n, .members = members};
	struct iovec body[3] = {{&head, sizeof head}, {(void *)(uintptr_t)key, head.key_bytes}, {(void *)(uintptr_t)value, n}};
	int rc = rpi_request(h, type, body, n ? 3 : 2, want, deadline, err);
	if (rc != RP_OK)
		return rc;
	int32_t code;
	if (h->reply.length < 8)
		return rpi_error(err, RP_EVERSION, "the daemon's answer has %u bytes, want at least 8", h->reply.length);
	memcpy(&code, h->reply.body, sizeof code);
	if (code == RP_OK)
		return RP_OK;
	return rpi_error(err, code < 0 && code >= RP_ECANCELED ? code : RP_EREFUSED, "key %s: %s", key, rp_strerror(code));
}

RP_API int rp_kv_set(rp_handle *h, const char *key, const void *value, size_t n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_kv_set", key, n, timeout_ns, &deadline, err);
	if (rc == RP_OK && n && !value)
		rc = rpi_error(err, RP_EINVAL, "rp_kv_set: value is NULL");
	return rc == RP_OK ? ask(h, RP_M_KV_SET, key, value, n, 0, RP_M_KV_OK, deadline, err) : rc;
}

RP_API int rp_kv_get(rp_handle *h, const char *key, void *value, size_t *n, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_kv_get", key, 0, timeout_ns, &deadline, err);
	if (rc == RP_OK && (!n || (*n && !value)))
		rc = rpi_error(err, RP_EINVAL, "rp_kv_get: value or its size is NULL");
	if (rc == RP_OK)
		rc = ask(h, RP_M_KV_GET, key, NULL, 0, 0, RP_M_KV_VALUE, deadline, err);
	if (rc != RP_OK)
		return rc;
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

RP_API int rp_barrier(rp_handle *h, const char *name, uint32_t members, int64_t timeout_ns, rp_error *err) {
	RPI_ENTER(h, err);
	int64_t deadline;
	int rc = check(h, "rp_barrier", name, 0, timeout_ns, &deadline, err);
	if (rc == RP_OK && members == 0)
		rc = rpi_error(err, RP_EINVAL, "rp_barrier %s: 0 members", name);
	return rc == RP_OK ? ask(h, RP_M_BARRIER, name, NULL, 0, members, RP_M_KV_OK, deadline, err) : rc;
}
