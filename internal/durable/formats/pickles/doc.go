// Package pickles reads and writes Python's pickles as data. Nothing that a pickle names is looked up, called or made: classes and calls come
// back as values, and a class that the caller does not admit ends the reading.
//
// Opcodes that programs which save tensors do not write are refused. What one pickle makes is bounded, by bytes and by values, before it is
// made.
package pickles
