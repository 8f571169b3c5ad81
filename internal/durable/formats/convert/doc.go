// Package convert takes generations out of a catalog in other programs' formats, and brings what these wrote in as generations.
//
// An export reads through the catalog, so that every byte is checked, and under a lease. It is written under another name and takes its own
// when the disk has all of it. An import goes by the catalog's own protocol: what it brings exists from its COMMIT on, and one that breaks off
// leaves nothing.
package convert
