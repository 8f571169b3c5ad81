// Package dcp reads and writes folders of torch.distributed.checkpoint: .metadata, a pickle that says what lies where, and files of what torch.save
// makes of each piece of a tensor. What is written a FileSystemReader takes, from torch 2.6 on.
package dcp
