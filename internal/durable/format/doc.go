// Package format is what the durable tier's objects hold and how they are called: bytes alone, the same in every store.
//
//	<root>/replicad.json                          the format's number
//	<root>/<job>/last.json, best.json             hints, by compare-and-swap: they save a listing and are never believed
//	<root>/<job>/log/<time>-<verb>-<nonce>.json   who did what to generations, and why
//	<root>/<job>/20261125T1716Z-4385b34d/         a run: when it began, first 8 digits of its UUID
//	    commits/step-00001200.e2.json             COMMIT: a generation without it does not exist
//	    epochs/000002.json                        the claim: the fleet that owns epoch 2
//	    frozen/group-0-<root>.a.safetensors, .b   frozen parts, shared by generations, twice; group-0-<root>.<seal>.a.safetensors: encrypted
//	    pins/step-00001200.e2-<who>.json          kept, with an optional end: readers' leases are these
//	    reads/step-00001200.e2.<unix>.good-<who>.json, .bad-<who>
//	    run.json                                  UUID, owner, program, from what it began
//	    step-00001200.e2/group-0.w17.safetensors  w17: number of the durable write in the log of that fleet's epoch
//	    step-00001200.e2/node-b.w17.safetensors   private parts of b's ranks: tensors "private-3/rng"
//	    step-00001200.e2/group-0.w17.6f1d02ab09c4e871.safetensors  encrypted: 8 digits say to whom, 8 which of several
//	    step-00001200.e2/index.w17.json           tensors, pieces, files
//	    summary.json                              hint: what all commits say, so that a list needs few requests
//	    trash/step-00000800.e1.json               what is being deleted and why; written before the first delete
//
// The order of these names within a run is part of the format: a list of a run takes three ranges of keys (commits and epochs; pins, reads
// and run.json; what lies behind the newest commit), whatever else there is.
//
// Everything a run's objects name is named below the run, so that a copy of its directory is whole.
//
// The chunk digests of a part lie in the header of its own file (see Object), bound to the root that index and COMMIT name. A file can
// therefore be verified alone, and who writes the index reads headers, not other files. The header is bounded as safetensors bounds it.
//
// Where COMMIT says so, index and files are encrypted, each an age file by itself (package sealed), under the same names.
//
// JSON objects carry kind, format number and SHA-256 of their body (Seal). Whatever is parsed is checked against the place that it was found
// at, and its counts are bounded before anything is allocated for them. A parser refuses what belongs to another job, run, step or epoch.
package format
