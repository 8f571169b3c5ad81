package admission

import "github.com/replicad/replicad/replica"

// Book is what was read of a job for processes that want its ranks. It belongs to the job.
type Book struct {
	kept map[replica.Rank]*durableGeometry // in the durable generation that the job opens from
}

// NewBook returns an empty book.
func NewBook() *Book { return &Book{kept: map[replica.Rank]*durableGeometry{}} }

// durableGeometry is what a rank has in the durable generation that a job opens from.
type durableGeometry struct {
	of    replica.Generation
	known bool // it was read, or can't be
	is    replica.Geometry
}
