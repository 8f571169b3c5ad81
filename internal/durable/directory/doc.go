// Package directory is a store in a directory of a file system that all nodes mount: NFS, Lustre, a disk of one node.
//
// An object is a plain file under its key, so that cp, rsync and ls work on it. Beside objects lie names that begin with '~', which no
// key does: "~" + ID + "-" + name is what a put or an upload is writing, or left when its process died (Unfinished lists it), and
// "~v-" + name is the directory of an object's later versions.
//
// What is assumed of the file system, and nothing more: link makes a name exactly once, on all hosts; fsync keeps what it says; a
// directory that this host has just changed is listed as it is. No lock is taken, since NFS 2 and 3 have flock on one host alone.
//
//   - PutNew and Upload link a file that is whole and synced to its name. Nothing is renamed over it. A link that says EEXIST is looked at
//     before it is believed: over NFS the first request may have been carried out and its answer lost.
//   - PutUnchanged links the next version to "~v-NAME/NUMBER", which exactly one of those that read the same version can. The file under
//     the key itself is then replaced, for people and plain copies; readers here take the highest number.
//
// Every call of the kernel passes a gate: a mount whose server is gone holds nobody up. Every operation finds out whether the path still
// names the directory that is open, and a write does not count before it did so again afterwards.
//
// It must not import anything of this module but store.
package directory
