package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/durable/kept"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

// runFlags are the flags of `replicad run` that are not launch.Options as they stand.
type runFlags struct {
	target
	opt           launch.Options
	ranks, groups string
	loose         string // groups whose ranks may differ
	from, fromJob string // what a new job begins with
	lease         *ckpt.Lease
	tokenFile     string
	keep          []string // files and folders that the run is to carry
	nohup         bool
}

func newRun(std stdio) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run --job NAME --world N [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run ranks of a job on this node, as its daemon asks for them",
		Long: "Runs COMMAND for each rank that this node's daemon assigns to it. The environment of COMMAND has\n" +
			"REPLICAD_SOCKET, REPLICAD_JOB, REPLICAD_TOKEN, REPLICAD_RANK, REPLICAD_WORLD, REPLICAD_GROUP,\n" +
			"REPLICAD_GROUPS and REPLICAD_HOST, and torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK,\n" +
			"LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and some of TORCHELASTIC_*.\n\n" +
			"When a process dies, the launcher starts it again on the daemon's order; the others keep running.\n" +
			"With --spare the launcher waits until a rank is lost elsewhere.\n\n" +
			"SIGINT and SIGTERM are passed on, and processes that have not ended 10 s later are killed. With SIGTERM\n" +
			"the ranks first end the step that they are in, for 10 s at most, and have it committed. SIGHUP (the\n" +
			"terminal is closed) does the same, unless --nohup or nohup(1) is given. Processes\n" +
			"of a finished job have no time limit for a last evaluation or save. The exit code is the job's, and 1\n" +
			"where a process fails after that.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no command: want `-- COMMAND [ARGUMENT...]` behind the flags, the program of the ranks")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			opt, err := f.job(cmd.Context(), args, std)
			defer func() { f.lease.End() }()
			if err != nil {
				return err
			}
			if opt.Preloaded, err = launch.Prepared(); err != nil {
				return usage.Wrong(err)
			}
			if opt.Kept, err = kept.Gather(f.keep); err != nil {
				return usage.Wrong(fmt.Errorf("--keep-file: %w", err))
			}
			if opt.Kept != nil {
				defer opt.Kept.Close()
			}
			ctx, again, stop := launch.UntilHangup(cmd.Context())
			defer stop()
			opt.Again = again
			if f.nohup {
				away, err := opt.LeaveTerminal(std.err)
				if err != nil {
					return usage.Wrong(err)
				}
				defer away.Close()
			}
			code, err := launch.Run(ctx, opt)
			if f.nohup && err != nil {
				opt.Logf("%v", err) // whom the terminal has left reads the file
			}
			if errors.Is(err, launch.ErrNoDaemon) {
				code = exitNobody
			}
			if code != 0 || err != nil {
				return &codedError{code, err}
			}
			return nil
		},
	}
	f.addJobFlags(cmd)
	flags, o := cmd.Flags(), &f.opt
	flags.StringVar(&f.ranks, "ranks", "", "ranks that this node prefers, as `0,3`")
	flags.BoolVar(&o.Spare, "spare", false, "wait, and take a rank only when one is lost elsewhere")
	flags.IntVar(&o.Warm, "warm", 0, "processes to start in advance: they import, and wait for a rank in replicad.wait_rank()")
	flags.StringVar(&o.Preload, "preload", launch.PreloadAuto, "auto: restarts of a Python program fork from a process that has its imports; none: each restart imports")
	flags.StringArrayVar(&f.keep, "keep-file", nil, "`PATH` of a file or folder that the run carries in the durable tier, and ckpt export puts beside the weights; dir/ means what is in it; repeatable")
	flags.BoolVar(&f.nohup, "nohup", false, "go on when the terminal is closed: ignore SIGHUP, and write what is printed to replicad-JOB.out in this directory")
	flags.IntVar(&o.Capacity, "capacity", 0, "processes at the same time (default: as many as --ranks, else --world)")
	fewFlags(cmd)
	return cmd
}

// everyValue reads --durable-every.
type everyValue struct{ every *replica.Step }

func (v *everyValue) String() string {
	if v.every == nil || *v.every == 0 {
		return ""
	}
	return replica.DurableText(*v.every)
}

func (v *everyValue) Set(text string) (err error) {
	if *v.every, err = replica.ParseDurableEvery(text); err == nil && *v.every == 0 {
		*v.every = replica.DurableNever
	}
	return err
}

func (v *everyValue) Type() string { return "every" }

// noteValue reads --note.
type noteValue []replica.Remark

func (v *noteValue) String() string {
	if v == nil {
		return ""
	}
	var list []string
	for _, n := range *v {
		list = append(list, n.Name+"="+n.Text)
	}
	return strings.Join(list, " ")
}

func (v *noteValue) Set(text string) error {
	name, value, ok := strings.Cut(text, "=")
	if !ok {
		return fmt.Errorf("%q has no =: want NAME=TEXT", text)
	}
	*v = append(*v, replica.Remark{Kind: replica.Note, Name: name, Text: value})
	return replica.CheckRemarks(*v)
}

func (v *noteValue) Type() string { return "note" }

// addJobFlags are those that say which job, and how it is created.
func (f *runFlags) addJobFlags(cmd *cobra.Command) {
	f.target.addFlags(cmd)
	flags, o := cmd.Flags(), &f.opt
	flags.SetInterspersed(false)
	flags.StringVar(&o.Socket, "socket", "", "the daemon's `SOCKET` for ranks, instead of --config")
	flags.StringVar(&f.tokenFile, "token-file", "", "`FILE` with the job's token, as replicad job token prints it (default: $REPLICAD_TOKEN; with --config, derived from its job_secret)")
	flags.StringVar(&o.Host, "host", "", "`ADDRESS` of this node for the ranks' own sockets (default: the host of the daemon's addr)")
	flags.StringVar(&o.Job, "job", "", "`NAME` of the job: 1 to 63 letters, digits and, inside, - _ . ; required")
	flags.IntVar(&o.World, "world", 0, "ranks in the job, on all nodes")
	flags.StringVar(&f.groups, "groups", "", "replica group of each rank, as `0,1,0,1`, or auto: the ranks find their groups in the model (default: those of the running or resumed job, else one group)")
	flags.IntVar(&o.MinCopies, "min-copies", 0, "nodes that must hold each part before a step is committed (default 2)")
	flags.IntVar(&o.Cadence, "cadence", 0, "steps between generations (default 1)")
	flags.IntVar(&o.Slots, "slots", 0, "generations a rank's arena holds, 2 to 4 (default 2 where fewer ranks than --min-copies compute a part, or with --groups auto; else 4)")
	flags.IntVar(&o.ChunkMB, "chunk-mb", 0, fmt.Sprintf("chunk size in MiB, 1 or more; without the flag chunks have %d KiB", replica.DefaultChunkBytes>>10))
	flags.Var(&everyValue{&o.DurableEvery}, "durable-every", "`STEPS|TIME|auto` between generations written to disk: 500, 15m, or as often as the cost of a write and the faults of the job make worth while; 0: never (default: auto where the configuration sets durable_dir, else never)")
	flags.IntVar(&o.PrivateCapMB, "private-cap-mb", 0, "upper limit of a rank's private regions, in MiB (default 64)")
	flags.BoolVar(&o.RequireVotes, "require-votes", false, "never resume from a state that one rank alone vouches for")
	flags.IntVar(&o.LoneAhead, "lone-ahead", 0, "resume from a state that one rank alone vouches for only if it is `STEPS` ahead of one that two ranks vouch for; else compute the steps again (default 2; 1: always)")
	flags.BoolVar(&o.CollectiveWindow, "collective-window", false, "the optimizer step holds collectives: after a fault the daemon does not wait for a rank inside it")
	flags.StringVar(&f.loose, "nondeterministic", "", "replica groups whose ranks may differ, as `0,2`: the lowest rank's state counts, and the others load it")
	flags.Var((*noteValue)(&o.Notes), "note", "`NAME=TEXT` that durable checkpoints have of this run, as lr=0.1; repeatable")
	flags.StringVar(&f.from, "from", "", "`URL[@STEP|@best|@last]` of a generation of another run, of any layout, that a new job begins with; with --resume only where the job has no durable generation of its own")
	flags.StringVar(&f.fromJob, "from-job", "", "`NAME` of the job below --from's URL, where that has several")
	flags.BoolVar(&o.Resume, "resume", false, "if the job does not run yet, start from the newest durable generation of its name, if there is one")
}

// job is what the flags say, with the generation that --from names.
func (f *runFlags) job(ctx context.Context, args []string, std stdio) (launch.Options, error) {
	o, err := f.options(args, std)
	if err != nil {
		return o, err
	}
	if o.From, err = f.origin(ctx, std); err != nil {
		return o, err
	}
	o.Begun = f.lease.Begun
	return o, usage.Wrong(o.Validate())
}

// options are those of the flags, with the socket, token and host of the configuration where no flag says otherwise.
func (f *runFlags) options(args []string, std stdio) (launch.Options, error) {
	o := f.opt
	var badRanks, badGroups, badLoose error
	o.Ranks, badRanks = launch.ParseList[replica.Rank](f.ranks)
	o.Groups, o.Named, badGroups = launch.ParseGroups(f.groups)
	o.Nondeterministic, badLoose = launch.ParseList[replica.GroupID](f.loose)
	if err := errors.Join(badRanks, badGroups, badLoose); err != nil {
		return o, usage.Wrong(err)
	}
	judged := o // before the identity, whose lack would hide what is wrong with the flags
	judged.Command, judged.Socket = args, "of the configuration"
	if err := judged.Validate(); err != nil {
		return o, usage.Wrong(err)
	}
	if o.Socket == "" {
		c, err := f.load(nil)
		if err != nil {
			return o, err
		}
		o.Start = f.starts()
		o.Socket, o.Daemons, o.Admin, o.Token = c.Socket, c.Daemons(), c.AdminSocket, c.JobToken(o.Job)
		if o.Host == "" {
			o.Host = c.Host()
		}
	}
	if uid, err := strconv.ParseUint(os.Getenv(unixsock.DaemonUID), 10, 32); err == nil && len(o.Daemons) == 0 {
		o.Daemons = []uint32{uint32(uid)} // ranks get none of the launcher's own variables
	}
	if err := o.ReadToken(f.tokenFile); err != nil {
		return o, err
	}
	o.Program, _ = os.Executable() // without it ranks look for one on the path
	o.Command, o.Env, o.Stdout, o.Stderr = args, os.Environ(), std.out, std.err
	o.Logf = func(format string, args ...any) { console.Printf(std.err, "replicad run: "+format+"\n", args...) }
	return o, usage.Wrong(o.Validate())
}
