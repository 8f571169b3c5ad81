// Package gcs is a store in a bucket of Google Cloud Storage, by its JSON API.
//
// Conditions are generations. An upload puts its parts as objects of their own, below ~u/ in the root, where no key leads, and composes them
// at its end: only so can parts be put in any order, and an upload that was cut be listed and freed. Each body has its CRC32C beside it, which
// the server checks, and the whole object's is that of its parts, put together here.
//
// An object is absent where a listing of its name says so. The 404 of a request may be a proxy's, or mean the bucket.
//
// It must not import anything of this module but remote and store.
package gcs
