package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/durable/ckpt"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func (c ckptVerbs) ls() *cobra.Command {
	var f common
	return f.add(&cobra.Command{
		Use:   "ls WHERE",
		Short: "List generations: step, age, size, metrics, run, state",
		Long: ckptLong + `

States: good (the newest whole read found every byte), unread, damaged (the newest whole read failed),
unfinished (no commit: being written, or broken off), deleting. A stripped generation has no optimizer state:
nothing resumes from it. READ says when a generation was last read
whole. ` + "`ckpt verify`" + ` reads one.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := c.Find(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			defer w.Close()
			rows, err := ckpt.List(cmd.Context(), w)
			if err != nil {
				return err
			}
			if f.json {
				return console.JSON(c.std.out, rows)
			}
			return c.printRows(rows)
		},
	}, false)
}

func (c ckptVerbs) printRows(rows []ckpt.Row) error {
	if len(rows) == 0 {
		err := console.Write(c.std.out, "no generations\n")
		return err
	}
	t := tabwriter.NewWriter(c.std.out, 0, 0, 2, ' ', 0)
	console.Printf(t, "JOB\tSTEP\tEPOCH\tAGE\tSIZE\tSTATE\tREAD\tMETRICS\tPINNED\tRUN\n")
	for _, r := range rows {
		written, read := "-", "-"
		if r.Written != nil {
			written = console.Age(*r.Written)
		}
		if r.Read != nil {
			read = console.Age(*r.Read) + " ago"
		}
		state := string(r.State)
		if r.Stripped {
			state += ", stripped"
		}
		if r.Encrypted {
			state += ", encrypted"
		}
		if r.Keep != "" {
			r.Pinned = append(r.Pinned, console.Line(r.Keep))
		}
		console.Printf(t, "%s\t%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Job, r.Step, r.Epoch, written, console.Size(r.Bytes), state, read,
			metrics(r.Metrics), console.Dash(strings.Join(r.Pinned, ", ")), r.Run)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, r := range rows {
		if r.Why != "" {
			console.Printf(c.std.out, "%s step %d: %s\n", r.Job, r.Step, console.Line(r.Why))
		}
	}
	return nil
}

func (c ckptVerbs) log() *cobra.Command {
	var f common
	most := 100
	cmd := f.add(&cobra.Command{
		Use:   "log WHERE",
		Short: "Print who pinned, copied, deleted and swept what, and why",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 1 {
				return usage.Wrong(fmt.Errorf("--lines %d: want 1 or more", most))
			}
			w, err := c.Find(cmd.Context(), args[0], "")
			if err != nil {
				return err
			}
			defer w.Close()
			all, jobs, err := ckpt.Logs(cmd.Context(), w, most)
			if err != nil {
				return err
			}
			if f.json {
				return console.JSON(c.std.out, all)
			}
			for _, job := range jobs {
				for _, l := range all[job] {
					var steps []string
					for _, g := range l.Generations {
						steps = append(steps, fmt.Sprint(g.Step))
					}
					console.Printf(c.std.out, "%s  %s  %s@%s  %s %s  %s\n", time.UnixMilli(l.At).UTC().Format(time.RFC3339), job,
						replica.Line(l.Who, 80), replica.Line(l.Host, 80), replica.Line(l.Verb, 80), strings.Join(steps,
							","), replica.Line(l.Why, 200))
				}
			}
			return nil
		},
	}, false)
	cmd.Flags().IntVarP(&most, "lines", "n", most, "how many of the newest lines")
	return cmd
}

func (c ckptVerbs) wait() *cobra.Command {
	var f common
	var newer uint64
	every, most := 5*time.Second, time.Duration(0)
	cmd := f.add(&cobra.Command{
		Use:   "wait WHERE --newer STEP",
		Short: "Wait until a newer generation is committed and whole",
		Long: "Ends when the job has a generation beyond the step whose files are all there, and prints it. It is not read:\n" +
			"`ckpt verify` does that.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if every <= 0 || most < 0 {
				return usage.Wrong(fmt.Errorf("--every %v --timeout %v: want some time between two looks, as 5s, and none or some to "+
					"give up after", every, most))
			}
			if most > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, most, fmt.Errorf("no generation beyond step %d within %v", newer, most))
				defer cancel()
			}
			row, err := ckpt.Wait(ctx, c.Finder, args[0], replica.Step(newer), every)
			if err != nil {
				return err
			}
			if f.json {
				return console.JSON(c.std.out, row)
			}
			return c.printRows([]ckpt.Row{row})
		},
	}, false)
	cmd.Flags().Uint64Var(&newer, "newer", 0, "the step that is known already")
	cmd.Flags().DurationVar(&every, "every", every, "how often to look")
	cmd.Flags().DurationVar(&most, "timeout", 0, "give up after this long (0: never)")
	return cmd
}
