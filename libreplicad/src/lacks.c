/* lacks.c: what the copies of a rank lack. The handle keeps the text: a daemon that was away has forgotten it. */
#include <string.h>

#include "internal.h"

/* How many of n bytes are whole characters of at most RP_MAX_LACKS bytes in all. */
static uint32_t whole_characters(const char *text, size_t n) {
	if (n <= RP_MAX_LACKS)
		return (uint32_t)n;
	n = RP_MAX_LACKS;
	while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80)
		n--;
	return (uint32_t)n;
}

int rpi_tell_lacks(rp_handle *h) {
	if (!h->lacking || h->gone || h->lacks_on == h->connections)
		return RP_OK;
	struct iovec body = {h->lacks, h->lacks_bytes};
	int rc = rpi_send_on(h, h->fd, RP_M_LACKS, 0, &body, 1, -1, 0);
	if (rc == RP_OK)
		h->lacks_on = h->connections;
	return rc;
}

/* The message is sent with io held, so that of two threads neither sends an older text after a newer one. */
RP_API int rp_lacks(rp_handle *h, const char *text, rp_error *err) {
	RPI_ENTER(h, err);
	if (!text)
		return rpi_error(err, RP_EINVAL, "rp_lacks: text is NULL: \"\" takes back what was said");
	if (!h->control)
		return rpi_error(err, RP_ESTATE, "rp_lacks: before rp_attach");
	uint32_t n = whole_characters(text, strnlen(text, RP_MAX_LACKS + 1));
	pthread_mutex_lock(&h->io);
	if (n != h->lacks_bytes || memcmp(h->lacks, text, n) != 0) {
		memcpy(h->lacks, text, n);
		h->lacks_bytes = n;
		h->lacking = true;
		h->lacks_on = 0;
	}
	rpi_tell_lacks(h); /* best effort: rp_notify and rp_reconnect try again */
	pthread_mutex_unlock(&h->io);
	return RP_OK;
}
