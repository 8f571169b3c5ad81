package endpoint

import (
	"math"

	"golang.org/x/sys/unix"
)

// assembler writes a classic BPF program for a UDP socket. Jumps lead forward alone.
type assembler struct {
	code  []unix.SockFilter
	jumps map[int][]int // by label: those to it whose distance is not known yet
}

// udpHeader is what the kernel shows before a datagram's first byte. Offsets below count from that byte.
const udpHeader = 8

func (p *assembler) op(code int, k uint32) {
	p.code = append(p.code, unix.SockFilter{Code: uint16(code), K: k})
}

// load takes what lies at an offset, of a size and mode: BPF_ABS, or BPF_IND to add X.
func (p *assembler) load(size int, offset uint32) { p.op(unix.BPF_LD|size, udpHeader+offset) }

// length takes the datagram's, without the header.
func (p *assembler) length() {
	p.op(unix.BPF_LD|unix.BPF_W|unix.BPF_LEN, 0)
	p.op(unix.BPF_ALU|unix.BPF_SUB|unix.BPF_K, udpHeader)
}

// keep puts three words into scratch memory.
func (p *assembler) keep(mode int, offsets ...uint32) {
	for i, o := range offsets {
		p.load(unix.BPF_W|mode, o)
		p.op(unix.BPF_ST, uint32(i))
	}
}

func (p *assembler) branch(compare int, k uint32, yes, no uint8) {
	p.code = append(p.code, unix.SockFilter{Code: uint16(unix.BPF_JMP | unix.BPF_K | compare), Jt: yes, Jf: no, K: k})
}

func (p *assembler) jump(to int) {
	if p.jumps == nil {
		p.jumps = map[int][]int{}
	}
	p.jumps[to] = append(p.jumps[to], len(p.code))
	p.op(unix.BPF_JMP|unix.BPF_JA, 0) // a branch reaches 255 instructions, and a jump all
}

func (p *assembler) unless(compare int, k uint32, to int) {
	p.branch(compare, k, 1, 0)
	p.jump(to)
}

// label is where earlier jumps to it lead.
func (p *assembler) label(l int) {
	for _, i := range p.jumps[l] {
		p.code[i].K = uint32(len(p.code) - i - 1)
	}
	delete(p.jumps, l)
}

// passTagged passes the datagram if the third word in scratch memory is the tag of the first two.
func (p *assembler) passTagged(k tagKey) {
	fold := func(shift uint32) { // A ^= A >> shift
		p.op(unix.BPF_MISC|unix.BPF_TAX, 0)
		p.op(unix.BPF_ALU|unix.BPF_RSH|unix.BPF_K, shift)
		p.op(unix.BPF_ALU|unix.BPF_XOR|unix.BPF_X, 0)
	}
	p.op(unix.BPF_LD|unix.BPF_MEM, 0)
	p.op(unix.BPF_ALU|unix.BPF_ADD|unix.BPF_K, k[0])
	p.op(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, k[1])
	fold(15)
	p.op(unix.BPF_LDX|unix.BPF_MEM, 1)
	p.op(unix.BPF_ALU|unix.BPF_ADD|unix.BPF_X, 0)
	p.op(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, k[2])
	fold(13)
	p.op(unix.BPF_ALU|unix.BPF_MUL|unix.BPF_K, k[3])
	fold(16)
	p.op(unix.BPF_LDX|unix.BPF_MEM, 2)
	p.code = append(p.code, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_X, Jf: 1})
	p.op(unix.BPF_RET|unix.BPF_K, math.MaxUint32)
}

func (p *assembler) done() []unix.SockFilter { return p.code }
