package queen

import "context"

// An Observer is told of messages that are sent and handled, for tracing and metrics; package queenotel has one for OpenTelemetry. It must
// be safe for concurrent use.
type Observer interface {
	// Pushing is called before items are sent, by a push or in a transaction, and what it returns when it is known what became of them. It may change the items, which
	// are a copy: give them a trace id, for example.
	Pushing(ctx context.Context, items []Item) (context.Context, func(results []PushResult, err error))
	// Handling is called before a handler of [Client.Consume] gets m, and what it returns with the handler's error. The handler gets the
	// returned context.
	Handling(ctx context.Context, m *Message) (context.Context, func(err error))
}

// WithObserver tells observer of what the client does.
func WithObserver(observer Observer) Option {
	return func(c *Client) error { c.observer = observer; return nil }
}
