package bench

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine is where the figures were taken.
type Machine struct {
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"`
	MemoryGiB  float64 `json:"memory_gib"`
	Kernel     string  `json:"kernel"`
	LoadBefore string  `json:"load_before"` // averages over 1, 5 and 15 minutes
	LoadAfter  string  `json:"load_after"`
}

func describeMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), LoadBefore: load(), MemoryGiB: float64(meminfo("MemTotal")>>20) / 1024}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if name := field(b, "model name"); name != "" {
			m.CPU = name
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

// meminfo is a line of /proc/meminfo, in bytes; 0: there is none.
func meminfo(name string) uint64 { return kilobytes("/proc/meminfo", name) }

// kilobytes reads a line such as "VmRSS:  12 kB" of a file of /proc, in bytes; 0: there is none.
func kilobytes(file, name string) uint64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSuffix(field(b, name), " kB"), 10, 64) // 0 of what is no number
	return n << 10
}

// field is what stands behind "name:" at the start of a line.
func field(text []byte, name string) string {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
