// Package importwall holds the walls between this module's packages, as tests: which way imports may point, what the pure
// packages must not use, that every package says what it is for, and that the daemon builds without cgo.
//
// It has no code beside its tests and imports nothing of this module. The table in walls_test.go is the law; a new package
// has to be entered there, with its layer.
package importwall
