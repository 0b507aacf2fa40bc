// Package queenotel makes OpenTelemetry spans of what a Queen client does: one for every push, one for every handled message. The
// consumer's span links to the producer's, whose traceparent travels with the message.
//
//	client, err := queen.Connect(url, queen.WithObserver(queenotel.New(provider)))
//
// The package is apart so that programs without OpenTelemetry do not carry it.
package queenotel

import (
	"context"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"queenmq/queen"
)

// scope names the instrumentation.
const scope = "queenmq/queen"

// New returns an observer whose spans go to provider; nil is the global one. Their attributes are those of the semantic conventions for
// messaging. Transaction ids and payloads are not among them.
func New(provider trace.TracerProvider) queen.Observer {
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	return &observer{tracer: provider.Tracer(scope)}
}

type observer struct{ tracer trace.Tracer }

// carrier holds the one header of the W3C format that travels with a message.
type carrier struct{ traceparent string }

func (c *carrier) Get(key string) string {
	if key == "traceparent" {
		return c.traceparent
	}
	return ""
}

func (c *carrier) Set(key, value string) {
	if key == "traceparent" {
		c.traceparent = value
	}
}

func (c *carrier) Keys() []string { return []string{"traceparent"} }

var format propagation.TraceContext

// Pushing begins a producer's span and gives its context to the messages that have none.
func (o *observer) Pushing(ctx context.Context, items []queen.Item) (context.Context, func([]queen.PushResult, error)) {
	queue := items[0].Queue
	for i := range items {
		if items[i].Queue != queue {
			queue = "(several)"
			break
		}
	}
	ctx, span := o.tracer.Start(ctx, "send "+queue, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(
		attribute.String("messaging.system", "queen"), attribute.String("messaging.operation.name", "send"), attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.destination.name", queue), attribute.Int("messaging.batch.message_count", len(items))))
	var c carrier
	format.Inject(ctx, &c)
	for i := range items {
		if items[i].Traceparent == "" {
			items[i].Traceparent = c.traceparent
		}
	}
	return ctx, func(results []queen.PushResult, err error) {
		duplicates := 0
		for i := range results {
			if results[i].Status == queen.Duplicate {
				duplicates++
			}
		}
		if duplicates > 0 {
			span.SetAttributes(attribute.Int("queen.duplicates", duplicates))
		}
		end(span, err)
	}
}

// Handling begins a consumer's span that links to the producer's.
func (o *observer) Handling(ctx context.Context, m *queen.Message) (context.Context, func(error)) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(
		attribute.String("messaging.system", "queen"), attribute.String("messaging.operation.name", "process"), attribute.String("messaging.operation.type", "process"),
		attribute.String("messaging.destination.name", m.Queue), attribute.String("messaging.destination.partition.id", m.Partition),
		attribute.String("messaging.consumer.group.name", m.Group), attribute.String("messaging.message.id", m.ID))}
	if producer := trace.SpanContextFromContext(format.Extract(context.Background(), &carrier{m.Traceparent})); producer.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: producer}))
	}
	ctx, span := o.tracer.Start(ctx, "process "+m.Queue, options...)
	return ctx, func(err error) { end(span, err) }
}

func end(span trace.Span, err error) {
	if err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
