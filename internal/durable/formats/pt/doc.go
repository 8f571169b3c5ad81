// Package pt reads and writes what torch.save writes: a zip of stored files, of which data.pkl is a pickle that names tensors and the others are
// their bytes. What is written torch.load takes with weights_only=True and mmap=True, from torch 2.6 on.
package pt
