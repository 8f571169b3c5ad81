// Package azure is a store in a container of Azure Blob Storage, by its REST API.
//
// Conditions are ETags. An upload stages blocks under the object's own name, and a list of them makes the object; the first block holds a
// place, so that an upload without a part is listed too. The server frees what was staged when an object is made of other blocks: an abort
// makes an empty one, if none is there, and deletes it. Each body has its MD5 beside it, which the server checks.
//
// Azure's own client is not linked: it brings a format of tables and three further parsers (D126), and it repeats requests by itself.
//
// It must not import anything of this module but remote and store.
package azure
