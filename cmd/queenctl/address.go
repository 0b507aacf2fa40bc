package main

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"uuid"

	"queenmq/queen"
)

// An address is where a message is found: its partition and its transaction id.
type address struct{ partitionID, transactionID string }

// addressOf reads PARTITION-ID/TRANSACTION-ID, or finds the newest message with a bare transaction id, in queue when that is
// given.
func (a *app) addressOf(ctx context.Context, text, queue string) (address, error) {
	if partition, id, ok := strings.Cut(text, "/"); ok {
		if _, err := uuid.Parse(partition); err == nil {
			return address{partition, id}, nil
		}
	}
	answer, err := a.look(ctx, "/api/v1/messages", values("transactionId", text, "queue", queue, "from", "1970-01-01T00:00:00Z", "limit", "2"))
	if err != nil {
		return address{}, err
	}
	found, err := decode[struct {
		Messages []struct {
			PartitionID string `json:"partitionId"`
			QueuePath   string `json:"queuePath"`
		} `json:"messages"`
	}](answer)
	if err != nil {
		return address{}, err
	}
	switch len(found.Messages) {
	case 0:
		return address{}, empty("no message with the transaction id %q; the list of messages forgets ids after a while, PARTITION-ID/TRANSACTION-ID finds it still", text)
	case 2:
		return address{}, usage("more than one message has the transaction id %q (%s, %s): name it as PARTITION-ID/TRANSACTION-ID, for example %s/%s", text,
			found.Messages[0].QueuePath, found.Messages[1].QueuePath, found.Messages[0].PartitionID, text)
	}
	return address{found.Messages[0].PartitionID, text}, nil
}

// message reads one message in full.
func (a *app) message(ctx context.Context, at address) (json.RawMessage, error) {
	return a.call(ctx, http.MethodGet, queen.Path("api", "v1", "messages", at.partitionID, at.transactionID), nil, nil)
}
