// Package retain is the rule by which durable generations are kept and deleted: all that is known of them and a policy in, a verdict
// with its reason out. Whoever deletes (checkpoint.Store.Prune, `replicad ckpt prune`) asks it and decides nothing itself.
//
// What it promises, whatever the policy says:
//   - the newest good generation of a name is never deleted;
//   - no good generation is deleted for the sake of one that was not read back, or that failed a read: these two count for nothing;
//   - the newest generation that was not read back stays until one newer than it is written;
//   - a damaged generation is deleted only where a newer good one is kept;
//   - what somebody reads, or has pinned, stays.
//
// It has no clock, no disk and no state, and imports replica alone.
package retain
