package queenotel_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	oteltrace "go.opentelemetry.io/otel/trace"

	"queenmq/queen"
	"queenmq/queen/queenotel"
	"queenmq/test/stack"
)

func TestMain(m *testing.M) { stack.RunShared(m) }

// TestConsumerLinksToProducer: over a push, a redelivery and a second queue.
func TestConsumerLinksToProducer(t *testing.T) {
	t.Parallel()
	spans := tracetest.NewSpanRecorder()
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	client, err := queen.Connect(stack.Shared().URL, queen.WithObserver(queenotel.New(provider)))
	require.NoError(t, err)
	defer client.Close()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	handled := 0
	items := []queen.Item{{Queue: "otel.first", Payload: []byte("1")}}
	_, err = client.Push(ctx, items...)
	require.NoError(t, err)
	require.Empty(t, items[0].Traceparent, "the caller's items are left alone")
	err = client.Consume(ctx, "otel.first", queen.ConsumeOptions{PopOptions: queen.PopOptions{Group: "g"}}, func(ctx context.Context, m *queen.Message) error {
		if handled++; handled == 1 {
			return errors.New("not yet")
		}
		_, err := client.Push(ctx, queen.Item{Queue: "otel.second", Payload: m.Payload})
		stop()
		return err
	})
	require.NoError(t, err)

	var sent, again oteltrace.SpanContext
	var processed []trace.ReadOnlySpan
	for _, span := range spans.Ended() {
		switch span.Name() {
		case "send otel.first":
			sent = span.SpanContext()
			require.Equal(t, oteltrace.SpanKindProducer, span.SpanKind())
		case "process otel.first":
			processed = append(processed, span)
		case "send otel.second":
			again = span.SpanContext()
			require.Equal(t, processedParent(spans), span.Parent().SpanID(), "what the handler pushes belongs to it")
		}
	}
	require.True(t, sent.IsValid())
	require.True(t, again.IsValid())
	require.Len(t, processed, 2)
	for _, span := range processed {
		require.Equal(t, oteltrace.SpanKindConsumer, span.SpanKind())
		require.Len(t, span.Links(), 1)
		require.Equal(t, sent.TraceID(), span.Links()[0].SpanContext.TraceID())
		require.Equal(t, sent.SpanID(), span.Links()[0].SpanContext.SpanID())
	}
	require.Equal(t, codes.Error, processed[0].Status().Code)
	require.Equal(t, codes.Unset, processed[1].Status().Code)

	batch, err := client.Pop(t.Context(), "otel.second", queen.PopOptions{})
	require.NoError(t, err)
	require.Contains(t, batch.Messages[0].Traceparent, again.SpanID().String())
}

// processedParent is the span of the handling that succeeded.
func processedParent(spans *tracetest.SpanRecorder) oteltrace.SpanID {
	var last oteltrace.SpanID
	for _, span := range spans.Ended() {
		if span.Name() == "process otel.first" {
			last = span.SpanContext().SpanID()
		}
	}
	return last
}

func Example() {
	provider := trace.NewTracerProvider() // your own, with an exporter
	client, err := queen.Connect(stack.Shared().URL, queen.WithObserver(queenotel.New(provider)))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	results, err := client.Push(context.Background(), queen.Item{Queue: "otel.example", Payload: []byte(`1`)})
	fmt.Println(results[0].Status, err)
	// Output: queued <nil>
}
