// Package hf reads and writes safetensors files, alone and as the folders of Hugging Face's libraries have them: shards and an index that says
// which tensor lies in which.
package hf
