package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"

	"queenmq/cmd/queenctl/output"
)

var leaseColumns = []output.Column{
	output.Col("QUEUE", "queue"), output.Col("PARTITION", "partition"), output.Col("GROUP", "consumerGroup"), output.Num("MESSAGES", "messageCount"),
	output.Num("HELD", "heldSeconds"), output.Num("REMAINING", "secondsRemaining"), output.Num("ATTEMPT", "attemptCount"), output.Col("LEASE", "leaseId").InWide(), output.Col("PARTITION-ID", "partitionId").InWide(),
}

func (a *app) leaseCommand() *cobra.Command {
	command := &cobra.Command{Use: "lease", Aliases: []string{"leases"}, Short: "List, lengthen and end leases", RunE: group}
	var queue, partition, consumer string
	var expiring, held, limit int
	var abandoned bool
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the live leases, or with --abandoned the batches that their holders gave up", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			query := values("queue", queue, "partition", partition, "consumerGroup", consumer)
			if expiring > 0 {
				query.Set("expiringWithinSeconds", fmt.Sprint(expiring))
			}
			if held > 0 {
				query.Set("heldLongerThanSeconds", fmt.Sprint(held))
			}
			if abandoned {
				query.Set("abandoned", "true")
			}
			return a.list(command.Context(), "/api/v1/leases", query, "leases", limit, true, "leases", leaseColumns)
		},
	}
	f := list.Flags()
	f.StringVar(&queue, "queue", "", "in this queue")
	f.StringVarP(&partition, "partition", "p", "", "of this partition")
	f.StringVarP(&consumer, "group", "g", "", "of this group")
	f.IntVar(&expiring, "expiring", 0, "only those that end within so many seconds")
	f.IntVar(&held, "held", 0, "only those held for longer than so many seconds")
	f.BoolVar(&abandoned, "abandoned", false, "batches whose lease ran out instead")
	countFlag(list, &limit, 0)

	var ofQueue, ofGroup string
	utilization := &cobra.Command{
		Use: "utilization", Short: "Show how many partitions of each queue are leased", Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, "/api/v1/leases/utilization", values("queue", ofQueue, "consumerGroup", ofGroup), nil)
			if err != nil {
				return err
			}
			return a.events(answer, "queues", "queues", []output.Column{output.Col("QUEUE", "queue"), output.Num("PARTITIONS", "totalPartitions"), output.Num("LEASED", "leasedPartitions"), output.Num("PERCENT", "utilizationPct")})
		},
	}
	utilization.Flags().StringVar(&ofQueue, "queue", "", "of this queue")
	utilization.Flags().StringVarP(&ofGroup, "group", "g", "", "leases of this group")

	var releaseGroup, leaseID string
	release := a.destructive(&cobra.Command{
		Use: "release PARTITION-ID", Short: "End a lease, so that its messages are delivered again at once", Args: args(cobra.ExactArgs(1)),
		RunE: func(command *cobra.Command, given []string) error {
			yes, err := a.confirm("end the lease of group %s on partition %s; whoever holds it cannot acknowledge any more", groupOrNone(releaseGroup), given[0])
			if !yes || err != nil {
				return err
			}
			return a.release(command.Context(), given[0], releaseGroup, leaseID)
		},
	})
	release.Flags().StringVarP(&releaseGroup, "group", "g", "", "consumer group (default: consumers without one)")
	release.Flags().StringVar(&leaseID, "lease", "", "only if this lease is the one")
	extend := a.extendCommand()
	extend.Long = extend.Short + "."
	command.AddCommand(list, utilization, release, extend)
	return command
}

// release ends a lease; none is exit code 4.
func (a *app) release(ctx context.Context, partitionID, consumer, lease string) error {
	body := map[string]string{"partitionId": partitionID}
	if consumer != "" {
		body["consumerGroup"] = consumer
	}
	if lease != "" {
		body["leaseId"] = lease
	}
	answer, err := a.call(ctx, http.MethodPost, "/api/v1/leases/release", nil, body)
	if err != nil {
		return err
	}
	if err := a.printer.Item(answer); err != nil {
		return err
	}
	result, err := decode[struct{ Released bool }](answer)
	if err != nil {
		return err
	}
	if !result.Released {
		return empty("nothing was leased")
	}
	return nil
}

// namesCommand lists namespaces or task names.
func (a *app) namesCommand(plural, singular string) *cobra.Command {
	return &cobra.Command{
		Use: plural, Short: fmt.Sprintf("List the %s names of queues with their counters", singular), Args: args(cobra.NoArgs),
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := a.call(command.Context(), http.MethodGet, "/api/v1/resources/"+plural, nil, nil)
			if err != nil {
				return err
			}
			return a.events(answer, plural, plural, []output.Column{
				output.Col("NAME", "name", singular), output.Num("QUEUES", "queueCount", "queues"), output.Num("PARTITIONS", "partitions"),
				output.Num("MESSAGES", "messages.total"), output.Num("PENDING", "messages.pending"),
			})
		},
	}
}
