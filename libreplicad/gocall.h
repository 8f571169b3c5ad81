/* gocall.h: what the binding adds to the contract. */
#include "include/replicad.h"

/* What a call writes to, out of Go's heap so that no call allocates. */
typedef struct {
	rp_error error;
	int armed;
} go_call;
