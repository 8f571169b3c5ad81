package main

import "github.com/spf13/cobra"

// verbs lists what the program can do; each has a file of its own.
func verbs(std stdio) []*cobra.Command {
	return []*cobra.Command{newDaemon(std), newKeeper(std), newRun(std), newExec(std), newAgent(std), newStatus(std), newJob(std), newNode(std), newVoter(std), newRevoke(std), newPKI(std), newAudit(std), newCkpt(std), newConfig(std), newPlan(std), newDemo(std), newBench(std), newChaos(std), newVersion(std)}
}
