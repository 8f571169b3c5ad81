// Package retain is the rule by which durable generations are kept and deleted: all that is known of them and a policy in, a verdict
// with its reason out. Whoever deletes (tier.Tier.Prune, `replicad ckpt prune`) asks it and decides nothing itself.
//
// What it promises, whatever the policy says:
//   - nothing goes before a newer one was read back, is good, and stays: what nobody has read, or what failed a read, pushes nothing out;
//   - so many of the newest good ones stay, and until there are so many, whatever was not read back stays as well;
//   - a damaged generation is deleted only where a newer good one is kept;
//   - what somebody reads, or has pinned, stays;
//   - before anything goes, whatever stays is looked at, and one that is newer and stays is read whole (DecideSeen).
//
// It has no clock, no disk and no state, and imports replica alone.
package retain
