package convert

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/replicad/replicad/internal/durable/formats"
	"github.com/replicad/replicad/internal/durable/formats/dcp"
	"github.com/replicad/replicad/internal/durable/formats/hf"
	"github.com/replicad/replicad/internal/durable/formats/pt"
)

// source is what is imported.
type source struct {
	format  string
	folder  *formats.Folder
	tensors []formats.Tensor
	others  []string // of what is no tensor
	left    []formats.Left
	opaque  []pt.Opaque
	aliases map[string]string // further names, and the tensors'
	bare    bool              // a model's own names, without that which a session gives the model
}

const known = "want a safetensors file, a folder of Hugging Face's with safetensors, a folder of torch.distributed.checkpoint, or a file of torch.save's"

// open recognises what lies at a path by its content, and lists its tensors.
func open(path string) (s *source, err error) {
	real, err := filepath.EvalSymlinks(path) // who named a link means what it leads to
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(real)
	if err != nil {
		return nil, err
	}
	dir, name := real, ""
	if !info.IsDir() {
		dir, name = filepath.Split(real)
	}
	f, err := formats.OpenFolder(filepath.Clean(dir))
	if err != nil {
		return nil, err
	}
	s = &source{folder: f}
	if name == "" {
		err = s.openFolder()
	} else {
		err = s.openFile(name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), f.Close())
	}
	return s, nil
}

func (s *source) openFile(name string) error {
	o, err := s.folder.Open(name)
	if err != nil {
		return err
	}
	head := make([]byte, min(o.Size, pt.HeadBytes))
	if err := s.folder.ReadAt(name, head, 0); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(string(head), pt.Magic), pt.IsOld(head):
		s.format = PT
		saved, err := pt.Read(within{s.folder, name}, o.Size)
		if err != nil {
			return err
		}
		s.tensors, s.others, s.left, s.opaque = saved.Tensors, saved.Others, saved.Left, saved.Opaque
		return nil
	case len(head) > 8 && head[8] == '{' && binary.LittleEndian.Uint64(head[:8]) < 1<<32:
		s.format = Safetensors
		saved, err := hf.ReadFile(s.folder, name)
		if err != nil {
			return err
		}
		s.bare = !saved.Ours
		s.of(saved)
		return nil
	case len(head) > 1 && head[0] == 0x80 && head[1] <= 5:
		return errors.New("it is a bare pickle, or was saved by torch before 0.2: load it with a program that you trust, and save its state dict with torch.save or safetensors")
	}
	return fmt.Errorf("it begins with %q, which is no format that is known: %s", head[:min(len(head), 9)], known)
}

// of takes what safetensors files have.
func (s *source) of(saved *hf.Saved) {
	s.tensors, s.left, s.aliases = saved.Tensors, saved.Left, saved.Aliases
}

// within reads a file of a folder.
type within struct {
	f    *formats.Folder
	name string
}

func (w within) ReadAt(b []byte, off int64) (int, error) {
	if err := w.f.ReadAt(w.name, b, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (s *source) openFolder() error {
	names, err := s.folder.Names()
	if err != nil {
		return err
	}
	switch {
	case slices.Contains(names, dcp.Metadata):
		s.format = DCP
		tensors, saved, err := dcp.ReadFolder(s.folder)
		if err == nil {
			s.tensors, s.others, s.left = tensors, saved.Others, saved.Left
		}
		return err
	case hf.Holds(names):
		s.format, s.bare = HF, true
		saved, err := hf.ReadFolder(s.folder)
		if err == nil {
			s.of(saved)
		}
		return err
	}
	if tag := deepspeed(s.folder, names); tag != "" {
		return fmt.Errorf("it is a checkpoint of DeepSpeed's (%s): its own zero_to_fp32.py, which lies beside it, makes safetensors of it (python zero_to_fp32.py . OUT --safe_serialization); import OUT", tag)
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".bin") || strings.HasSuffix(n, ".pt") || strings.HasSuffix(n, ".pth") {
			return fmt.Errorf("it has no safetensors and no %s: import one file, as %s", dcp.Metadata, n)
		}
	}
	return fmt.Errorf("nothing in it is known: %s", known)
}

// deepspeed names what shows that a folder is DeepSpeed's: the shards of ZeRO, in it or below it.
func deepspeed(f *formats.Folder, names []string) string {
	ofZero := func(n string) bool {
		return strings.HasSuffix(n, "_optim_states.pt") || strings.HasSuffix(n, "_model_states.pt") || n == "zero_to_fp32.py"
	}
	if i := slices.IndexFunc(names, ofZero); i >= 0 {
		return names[i]
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, "global_step") }); i >= 0 && f.Has("latest") {
		return names[i]
	}
	return ""
}
