// Package planted holds the bugs that are planted back, a build tag each, to see that the tests find them: the negative controls of chaos/
// and internal/sim (`make sim-control`). What was mended asks for its constant, in one line. No release is built with such a tag. It
// imports nothing.
package planted
