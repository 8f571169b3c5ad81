/* said.c: what a rank says of its job. The handle keeps the whole of it: a daemon that was away has forgotten it. */
#include <math.h>
#include <string.h>

#include "internal.h"

int rpi_tell_said(rp_handle *h) {
	if (!h->said_bytes || h->gone || h->said_on == h->connections)
		return RP_OK;
	struct iovec body = {h->said, h->said_bytes};
	int rc = rpi_send_on(h, h->fd, RP_M_SAID, 0, &body, 1, -1, 0);
	if (rc == RP_OK)
		h->said_on = h->connections;
	return rc;
}

static int check_remark(const rp_remark *r, size_t i, size_t name, size_t text, rp_error *err) {
	bool number = r->kind == RP_METRIC || r->kind == RP_LOADER_EPOCH;
	if (!number && r->kind != RP_NOTE && r->kind != RP_VERSION)
		return rpi_error(err, RP_EINVAL, "rp_say: remark %zu has kind %u: want that of a note, a metric, a version or an epoch of a loader", i, r->kind);
	if (name == 0 || name > RP_MAX_REMARK_NAME)
		return rpi_error(err, RP_EINVAL, "rp_say: the name %.80s of remark %zu is empty or longer than %u bytes", r->name ? r->name : "(NULL)", i, RP_MAX_REMARK_NAME);
	if (text > RP_MAX_REMARK_TEXT)
		return rpi_error(err, RP_EINVAL, "rp_say: the text of %.80s is longer than %u bytes", r->name, RP_MAX_REMARK_TEXT);
	if (number != (r->text == NULL) || (!number && (r->value != 0 || r->step != 0)))
		return rpi_error(err, RP_EINVAL, "rp_say: %.80s: a note or version has a text alone, and what belongs to a step a number alone", r->name);
	if (!isfinite(r->value) && !(r->kind == RP_METRIC && isnan(r->value)))
		return rpi_error(err, RP_EINVAL, "rp_say: %.80s is %g, which is not finite", r->name, r->value);
	return RP_OK;
}

/* The message is sent with io held, so that of two threads neither sends an older one after a newer one. */
RP_API int rp_say(rp_handle *h, const rp_remark *remarks, size_t n, rp_error *err) {
	RPI_ENTER(h, err);
	if (!remarks && n)
		return rpi_error(err, RP_EINVAL, "rp_say: remarks is NULL");
	if (!h->control)
		return rpi_error(err, RP_ESTATE, "rp_say: before rp_attach");
	if (n > RP_MAX_REMARKS)
		return rpi_error(err, RP_EINVAL, "rp_say: %zu remarks, at most %u", n, RP_MAX_REMARKS);
	unsigned of[RP_LOADER_EPOCH + 1] = {0};
	for (size_t i = 0; i < n; i++) {
		const rp_remark *r = &remarks[i];
		size_t name = r->name ? strnlen(r->name, RP_MAX_REMARK_NAME + 1) : 0, text = r->text ? strnlen(r->text, RP_MAX_REMARK_TEXT + 1) : 0;
		int rc = check_remark(r, i, name, text, err);
		if (rc != RP_OK)
			return rc;
		if (++of[r->kind] > RP_MAX_REMARKS / 4)
			return rpi_error(err, RP_EINVAL, "rp_say: %.80s is one more than %u of its kind", r->name, RP_MAX_REMARKS / 4);
		for (size_t j = 0; j < i; j++)
			if (remarks[j].kind == r->kind && strcmp(remarks[j].name, r->name) == 0)
				return rpi_error(err, RP_EINVAL, "rp_say: %.80s comes twice", r->name);
	}
	pthread_mutex_lock(&h->io);
	h->said_bytes = 0;
	for (size_t i = 0; i < n; i++) {
		const rp_remark *r = &remarks[i];
		rp_said_remark head = {.kind = (uint16_t)r->kind, .name_bytes = (uint16_t)strlen(r->name), .text_bytes = r->text ? (uint32_t)strlen(r->text) : 0, .step = r->step, .value = r->value};
		memcpy(h->said + h->said_bytes, &head, sizeof head);
		memcpy(h->said + h->said_bytes + sizeof head, r->name, head.name_bytes);
		if (head.text_bytes)
			memcpy(h->said + h->said_bytes + sizeof head + head.name_bytes, r->text, head.text_bytes);
		h->said_bytes += (uint32_t)sizeof head + head.name_bytes + head.text_bytes;
	}
	h->said_on = 0;
	rpi_tell_said(h); /* best effort: rp_notify and rp_reconnect try again */
	pthread_mutex_unlock(&h->io);
	return RP_OK;
}
