// Package transfer holds benchmarks alone: how fast a part moves over net.Pipe (the cost of transfer itself), TCP and QUIC,
// beside plain TCP that neither hashes nor verifies. Only ratios of one run count:
//
//	go test ./bench/transfer -run xxx -bench . -benchtime 5x
//
// Nothing imports it, and outside its tests it imports nothing.
package transfer
