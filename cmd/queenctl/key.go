package main

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) keyCommand() *cobra.Command {
	command := &cobra.Command{Use: "key", Aliases: []string{"keys"}, Short: "Encryption keys: which queues need one, and how to rotate", RunE: group}
	command.AddCommand(&cobra.Command{
		Use: "rotate", Short: "Show the steps of a key rotation for this cluster", Args: args(cobra.NoArgs),
		Long: `Show what to do to replace the encryption key. Keys never travel over the API: they are settings of the brokers, and re-encrypting
works on the database, so the commands run where a broker's settings are. This lists them with the brokers and queues they are
about; with -o json as data.`,
		RunE: func(command *cobra.Command, _ []string) error { return a.rotation(command.Context()) },
	})
	return command
}

// rotation lists the encrypted queues and the brokers that need the new key first.
func (a *app) rotation(ctx context.Context) error {
	type queue struct {
		Name              string
		EncryptionEnabled bool
	}
	queues, err := eventPages[queue](ctx, a, "/api/v1/resources/queues", "queues", values("stats", "cached"), true)
	if err != nil {
		return err
	}
	encrypted := []string{}
	for _, q := range queues {
		if q.EncryptionEnabled {
			encrypted = append(encrypted, q.Name)
		}
	}
	answer, err := a.call(ctx, http.MethodGet, "/api/v1/system/brokers", nil, nil)
	if err != nil {
		return err
	}
	list, err := decode[struct {
		Brokers []struct {
			ID    string
			Alive bool
		}
	}](answer)
	if err != nil {
		return err
	}
	brokers := []string{}
	for _, b := range list.Brokers {
		if b.Alive {
			brokers = append(brokers, b.ID)
		}
	}
	return a.showRotation(encrypted, brokers)
}

// rotationSteps are the commands in their order.
var rotationSteps = []struct {
	Do  string `json:"do"`
	Why string `json:"why"`
}{
	{"openssl rand -hex 32", "make the new key"},
	{"QUEEN_ENCRYPTION_KEYS_OLD=<new>", "on every broker, restarted one by one: from then on all can read what is written with it"},
	{"QUEEN_ENCRYPTION_KEY=<new> QUEEN_ENCRYPTION_KEYS_OLD=<old>", "on every broker, restarted one by one: from then on it is written with"},
	{"queen keys rotate", "on one machine with these settings: re-encrypt what is stored; it may be stopped and run again"},
	{"queen keys check", "until it says that nothing is left under the old key"},
	{"unset QUEEN_ENCRYPTION_KEYS_OLD", "on every broker, and restart them"},
}

func (a *app) showRotation(encrypted, brokers []string) error {
	if !a.printer.Format.Table() {
		text, err := bodyText(map[string]any{"encryptedQueues": encrypted, "brokers": brokers, "steps": rotationSteps})
		if err != nil {
			return err
		}
		return a.printer.Item(text)
	}
	fmt.Fprintf(a.stdout, "%s, %s alive.\n\n", many(len(encrypted), "encrypted queue"), many(len(brokers), "broker"))
	rows := [][]string{{"STEP", "DO", "WHY"}}
	for i, step := range rotationSteps {
		rows = append(rows, []string{fmt.Sprint(i + 1), step.Do, step.Why})
	}
	return a.printer.Rows(rows)
}
