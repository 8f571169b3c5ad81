/* main.c: runs every test, or those whose name contains the argument. Run in libreplicad/. */
#include <unistd.h>

#include "harness.h"

rp_error failure;

int main(int argc, char **argv) {
	const test *const lists[] = {bytes_tests, words_tests, capture_tests, help_tests, process_tests, kv_tests, mutation_tests, stress_tests, grow_tests};
	int n = 0;
	for (size_t l = 0; l < sizeof lists / sizeof *lists; l++)
		for (const test *t = lists[l]; t->name; t++) {
			if (argc > 1 && !strstr(t->name, argv[1]))
				continue;
			fprintf(stderr, "  %s\n", t->name);
			alarm(120); /* one that hangs ends the run, with its name as the last line */
			t->run();
			n++;
		}
	fprintf(stderr, "%d C tests passed\n", n);
	return n ? 0 : 1;
}
