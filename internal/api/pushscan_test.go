package api

import (
	"bytes"
	"encoding/json"
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"queenmq/internal/engine/push"
)

const traceText = "11112222-3333-4444-8555-666677778888"

func scanItems(body string) ([]push.Item, error) {
	var scan pushScan
	err := scan.scan([]byte(body))
	return scan.items, err
}

func TestScanPushReadsItems(t *testing.T) {
	t.Parallel()
	trace := uuid.NullUUID{UUID: uuid.MustParse(traceText), Valid: true}
	for _, tc := range []struct {
		name, body string
		want       []push.Item
	}{
		{"Empty", `{"items":[]}`, nil},
		{"Minimal", `{"items":[{"queue":"q","payload":1}]}`, []push.Item{{Queue: "q", Partition: "Default", Payload: []byte("1")}}},
		{
			"AllMembers", ` { "items" : [ { "queue" : "q" , "partition" : "p" , "transactionId" : "t" , "traceId" : "` + traceText + `" , "payload" : { "a" : [ 1 , 2 ] } } ] } `,
			[]push.Item{{Queue: "q", Partition: "p", TransactionID: "t", TraceID: trace, Payload: []byte(`{ "a" : [ 1 , 2 ] }`)}},
		},
		{
			"NullIsAbsent", `{"items":[{"queue":"q","partition":null,"transactionId":null,"traceId":null,"payload":null}]}`,
			[]push.Item{{Queue: "q", Partition: "Default", Payload: []byte("null")}},
		},
		{"EmptyPartitionIsAName", `{"items":[{"queue":"q","partition":"","payload":""}]}`, []push.Item{{Queue: "q", Payload: []byte(`""`)}}},
		{
			"LastDuplicateWins", `{"items":[{"queue":"a","queue":"b","payload":1,"payload":2,"partition":"x","partition":null,"transactionId":"long one","transactionId":"t"}]}`,
			[]push.Item{{Queue: "b", Partition: "Default", TransactionID: "t", Payload: []byte("2")}},
		},
		{
			"LastItemsWins", `{"items":[{"queue":"a","payload":1,"transactionId":"x"}],"items":[{"queue":"b","payload":2}]}`,
			[]push.Item{{Queue: "b", Partition: "Default", Payload: []byte("2")}},
		},
		{
			"UnknownMembersSkipped", `{"x":{"items":[1]},"items":[{"z":[{"queue":1}],"queue":"q","payload":1,"producerSub":"me"}],"y":null}`,
			[]push.Item{{Queue: "q", Partition: "Default", Payload: []byte("1")}},
		},
		{
			"Escapes", `{"\u0069tems":[{"\u0071ueue":"\u00e9\ud83d\ude00\/\"\\","payload":"\ud800 \u0000","transactionId":"\u0041"}]}`,
			[]push.Item{{Queue: `é😀/"\`, Partition: "Default", TransactionID: "A", Payload: []byte(`"\ud800 \u0000"`)}},
		},
		{
			"PayloadVerbatim", `{"items":[{"queue":"q","payload":{"b":1E400,"b":123456789012345678901234567890,"a":-0.0e-7,"c":"\u00E9"}}]}`,
			[]push.Item{{Queue: "q", Partition: "Default", Payload: []byte(`{"b":1E400,"b":123456789012345678901234567890,"a":-0.0e-7,"c":"\u00E9"}`)}},
		},
		{
			"TraceIDThatIsNone", `{"items":[{"queue":"q","payload":1,"traceId":"no"},{"queue":"q","payload":1,"traceId":{"a":1}},{"queue":"q","payload":1,"traceId":"{11112222-3333-4444-8555-66667777888}"}]}`,
			[]push.Item{{Queue: "q", Partition: "Default", Payload: []byte("1")}, {Queue: "q", Partition: "Default", Payload: []byte("1")}, {Queue: "q", Partition: "Default", Payload: []byte("1")}},
		},
		{
			"NamesAtTheirBounds", `{"items":[{"queue":"` + strings.Repeat("é", 255) + `","partition":"` + strings.Repeat("p", 1024) + `","transactionId":"` + strings.Repeat("t", 65535) + `","payload":1}]}`,
			[]push.Item{{Queue: strings.Repeat("é", 255), Partition: strings.Repeat("p", 1024), TransactionID: strings.Repeat("t", 65535), Payload: []byte("1")}},
		},
		{
			"DeepPayload", `{"items":[{"queue":"q","payload":` + strings.Repeat("[", maxJSONDepth-3) + strings.Repeat("]", maxJSONDepth-3) + `}]}`,
			[]push.Item{{Queue: "q", Partition: "Default", Payload: []byte(strings.Repeat("[", maxJSONDepth-3) + strings.Repeat("]", maxJSONDepth-3))}},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got, err := scanItems(tc.body)
			require.NoError(t, err)
			if len(got) == 0 {
				got = nil
			}
			require.Empty(t, cmp.Diff(tc.want, got))
		})
	}
}

func TestScanPushRefuses(t *testing.T) {
	t.Parallel()
	item := func(members string) string { return `{"items":[{"queue":"a","payload":0},{` + members + `}]}` }
	for _, tc := range []struct{ name, body, want string }{
		{"EmptyBody", "", "bad body: unexpected end of the body at line 1 column 1"},
		{"NotJSON", "hello", "bad body: expected value at line 1 column 1"},
		{"ArrayBody", "[]", "bad body: invalid type: an array, expected an object with items at line 1 column 1"},
		{"NoItems", "{}", "bad body: missing field `items` at line 1 column 3"},
		{"NullItems", `{"items":null}`, "bad body: missing field `items` at line 1 column 15"},
		{"ItemsObject", `{"items":{}}`, "bad body: invalid type: an object, expected an array for `items` at line 1 column 10"},
		{"ItemNumber", `{"items":[1]}`, "bad body: invalid type: a number, expected an object for item 0 at line 1 column 11"},
		{"NoQueue", item(`"payload":1`), "bad body: missing field `queue` in item 1 at line 1 column 50"},
		{"NullQueue", item(`"queue":null,"payload":1`), "bad body: missing field `queue` in item 1 at line 1 column 63"},
		{"NullQueueLast", item(`"queue":"q","queue":null,"payload":1`), "missing field `queue` in item 1"},
		{"EmptyQueue", item(`"queue":"","payload":1`), "bad body: queue of item 1 must not be empty at line 1 column 46"},
		{"NumberQueue", item(`"queue":7,"payload":1`), "bad body: invalid type: a number, expected a string for `queue` of item 1 at line 1 column 46"},
		{"NoPayload", item(`"queue":"q","data":1`), "bad body: missing field `payload` in item 1 at line 1 column 59"},
		{"BooleanPartition", item(`"queue":"q","partition":true,"payload":1`), "invalid type: a boolean, expected a string for `partition` of item 1"},
		{"ObjectTransactionID", item(`"queue":"q","transactionId":{},"payload":1`), "invalid type: an object, expected a string for `transactionId` of item 1"},
		{"LongQueue", item(`"queue":"` + strings.Repeat("é", 256) + `","payload":1`), "queue of item 1 is longer than 255 characters"},
		{"LongPartition", item(`"queue":"q","partition":"` + strings.Repeat("p", 1025) + `","payload":1`), "partition of item 1 is longer than 1024 bytes"},
		{"LongTransactionID", item(`"queue":"q","payload":1,"transactionId":"` + strings.Repeat("t", 65536) + `"`), "bad body: transactionId of item 1 exceeds the 65535-byte limit"},
		{"ControlInQueue", item(`"queue":"\u0000","payload":1`), "bad body: control characters are not allowed in queue, partition or transactionId at line 1 column 46"},
		{"ControlInPartition", item(`"queue":"q","partition":"a\nb","payload":1`), "control characters are not allowed in queue, partition or transactionId"},
		{"ControlInTransactionID", item(`"queue":"q","transactionId":"\u001f","payload":1`), "control characters are not allowed in queue, partition or transactionId"},
		{"LoneSurrogateInQueue", item(`"queue":"\ud800","payload":1`), "bad body: lone surrogate escapes are not allowed in names (`queue` of item 1) at line 1 column 46"},
		{"SwappedSurrogates", item(`"queue":"\ude00\ud83d","payload":1`), "lone surrogate escapes"},
		{"RawControl", item("\"queue\":\"a\tb\",\"payload\":1"), "bad body: control character in a string must be escaped at line 1 column 48"},
		{"InvalidUTF8", "{\"items\":[{\"queue\":\"q\",\n\"payload\":\"\xff\"}]}", "bad body: invalid UTF-8 at line 2 column 12"},
		{"ByteOrderMark", "\uFEFF{\"items\":[]}", "bad body: unexpected byte order mark at line 1 column 1"},
		{"Trailing", `{"items":[]} x`, "bad body: trailing characters at line 1 column 14"},
		{"TrailingComma", `{"items":[],}`, "key must be a string"},
		{"TrailingCommaInArray", `{"items":[{"queue":"q","payload":1},]}`, "expected value"},
		{"Truncated", `{"items":[{"queue":"q","payload":{"a":`, "bad body: unexpected end of the body at line 1 column 39"},
		{"BadEscape", item(`"queue":"\x41","payload":1`), "invalid escape"},
		{"ShortUnicodeEscape", item(`"queue":"\u00`), "invalid escape"},
		{"LeadingZero", item(`"queue":"q","payload":01`), "expected `,` or `}`"},
		{"BareMinus", item(`"queue":"q","payload":-`), "invalid number"},
		{"BareFraction", item(`"queue":"q","payload":1.`), "invalid number"},
		{"BareExponent", item(`"queue":"q","payload":1e+`), "invalid number"},
		{"NaN", item(`"queue":"q","payload":NaN`), "expected value"},
		{"WrongClosing", `{"items":[{"queue":"q","payload":[1}]}`, "expected `,` or `]`"},
		{"MissingColon", `{"items" []}`, "expected `:`"},
		{"TooDeep", `{"items":[{"queue":"q","payload":` + strings.Repeat("[", maxJSONDepth-2) + strings.Repeat("]", maxJSONDepth-2) + `}]}`, "nested deeper than 10000 levels"},
		{"MultiLine", "{\"items\":[\n {\"queue\":\"q\",\n  \"payload\":tru}]}", "bad body: expected value at line 3 column 13"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			_, err := scanItems(tc.body)
			require.ErrorContains(t, err, tc.want)
			known, ok := errors.AsType[*requestError](err)
			require.True(t, ok)
			require.Equal(t, codeBadBody, known.code)
		})
	}
}

func TestScanPushBoundsItems(t *testing.T) {
	t.Parallel()
	items := strings.Repeat(`{"queue":"q","payload":1},`, maxPushItems)
	got, err := scanItems(`{"items":[` + strings.TrimSuffix(items, ",") + `]}`)
	require.NoError(t, err)
	require.Len(t, got, maxPushItems)
	_, err = scanItems(`{"items":[` + items + `{"queue":"q","payload":1}]}`)
	known, ok := errors.AsType[*requestError](err)
	require.True(t, ok, "want a request error, got %v", err)
	require.Equal(t, codeBatchTooLarge, known.code)
}

// A scan is reused: nothing of an earlier body may show in a later one.
func TestScanPushForgetsEarlierBodies(t *testing.T) {
	t.Parallel()
	var scan pushScan
	require.NoError(t, scan.scan([]byte(`{"items":[{"queue":"first","partition":"p","transactionId":"t","traceId":"`+traceText+`","payload":1},{"queue":"second","payload":2}]}`)))
	first := scan.items[0]
	require.Error(t, scan.scan([]byte(`{"items":[{"queue":"x","transactionId":"gone","payload":1},{}]}`)))
	require.NoError(t, scan.scan([]byte(`{"items":[{"queue":"q","payload":3}]}`)))
	require.Empty(t, cmp.Diff([]push.Item{{Queue: "q", Partition: "Default", Payload: []byte("3")}}, scan.items))
	require.Equal(t, "first", first.Queue)
	require.Equal(t, "t", first.TransactionID)
}

// errReference stands for every refusal of the reference scanner.
var errReference = errors.New("refused by the reference")

// referenceScan reads a push body with the standard library: json.Valid decides what JSON is, and jsontext finds the members.
// It is the specification that the scanner is compared with.
func referenceScan(body []byte) (items []push.Item, err error) {
	if !utf8.Valid(body) || !json.Valid(body) {
		return nil, errReference
	}
	dec := jsontext.NewDecoder(bytes.NewReader(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	found := false
	err = members(dec, func(name string) error {
		if name != "items" {
			return dec.SkipValue()
		}
		items, found = nil, false
		switch dec.PeekKind() {
		case 'n':
			return dec.SkipValue()
		case '[':
		default:
			return errReference
		}
		if _, err := dec.ReadToken(); err != nil {
			return err
		}
		for dec.PeekKind() != ']' {
			item, err := referenceItem(dec)
			if err != nil {
				return err
			}
			items = append(items, item)
		}
		found = true
		_, err := dec.ReadToken()
		return err
	})
	if err == nil && !found {
		err = errReference
	}
	return items, err
}

func referenceItem(dec *jsontext.Decoder) (push.Item, error) {
	item := push.Item{Partition: "Default"}
	queue := false
	err := members(dec, func(name string) error {
		value, err := dec.ReadValue()
		if err != nil {
			return err
		}
		value = bytes.Clone(value)
		text, present := "", false
		if name == "queue" || name == "partition" || name == "transactionId" {
			switch {
			case value[0] == '"':
				if text, present, err = referenceText(value); err != nil {
					return err
				}
			case string(value) != "null":
				return errReference
			}
		}
		switch name {
		case "queue":
			item.Queue, queue = text, present
			if present && (text == "" || utf8.RuneCountInString(text) > 255) {
				return errReference
			}
		case "partition":
			if item.Partition = text; !present {
				item.Partition = "Default"
			}
			if len(text) > 1024 {
				return errReference
			}
		case "transactionId":
			if item.TransactionID = text; len(text) > 65535 {
				return errReference
			}
		case "traceId":
			item.TraceID = uuid.NullUUID{}
			if id, err := uuid.Parse(strings.Trim(string(value), `"`)); err == nil && len(value) == 38 && value[0] == '"' && value[1] != '{' {
				item.TraceID = uuid.NullUUID{UUID: id, Valid: true}
			}
		case "payload":
			item.Payload = value
		}
		return nil
	})
	if err == nil && (!queue || item.Payload == nil) {
		err = errReference
	}
	return item, err
}

// referenceText un-escapes a JSON string; what cannot be a name is refused.
func referenceText(value jsontext.Value) (text string, present bool, err error) {
	var plain []byte
	if plain, err = jsontext.AppendUnquote(nil, value); err != nil { // lone surrogates are an error here
		return "", false, errReference
	}
	if bytes.ContainsFunc(plain, func(r rune) bool { return r < 0x20 }) {
		return "", false, errReference
	}
	return string(plain), true, nil
}

// members calls each with the name of every member of the object that comes next.
func members(dec *jsontext.Decoder, each func(name string) error) error {
	if dec.PeekKind() != '{' {
		return errReference
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() != '}' {
		token, err := dec.ReadToken()
		if err != nil {
			return err
		}
		if err := each(token.String()); err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// FuzzScanPush compares the scanner with the standard library: both accept the same bodies and find the same items.
func FuzzScanPush(f *testing.F) {
	for _, seed := range []string{
		`{"items":[]}`,
		`{"items":[{"queue":"q","payload":1}]}`,
		`{"items":[{"queue":"q","partition":"p","transactionId":"t","traceId":"` + traceText + `","payload":{"a":[1,2.5e-3,null,true,"x\u0041\n"]}}]}`,
		`{"items":[{"queue":"\ud83d\ude00","payload":"\ud800"}],"items":null}`,
		"{\"items\":[{\"queue\":\"é\",\"payload\":\"\xff\"}]}",
		`{"a":[[[[]]]],"items":[{"payload":{},"payload":[],"queue":"a","queue":"b"}]} `,
		`{"\u0069tems":[{"\u0071ueue":"q","payload":-0.0E+1}]}`,
		`{"items":[{"queue":"q","payload":"0123456789abcdef\\\"x"}]}`,
		`{"items":[{"queue":"","payload":01}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var scan pushScan
		err := scan.scan(body)
		want, wantErr := referenceScan(body)
		if wantErr != nil && !errors.Is(wantErr, errReference) && !errors.Is(wantErr, io.ErrUnexpectedEOF) {
			t.Fatalf("the reference broke: %v", wantErr)
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("scanner says %v, the reference %v, for %q", err, wantErr, body)
		}
		if err != nil {
			return
		}
		got := scan.items
		if len(got) == 0 {
			got = nil
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("items differ (-reference +scanner):\n%s", diff)
		}
	})
}

// benchmarkBody is a request of n order-like messages.
func benchmarkBody(n int) []byte {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"queue":"orders","partition":"customer-%d","transactionId":"0199b0c4-7be2-7c04-a1d9-%012d","payload":{"order":%d,"total":19.99,"items":["a","b"],"note":"caf\u00e9"}}`, i%10, i, i)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func BenchmarkScanPush(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		body := benchmarkBody(n)
		perMessage := func(b *testing.B) {
			b.Helper()
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/msg")
			b.SetBytes(int64(len(body)))
		}
		b.Run(fmt.Sprintf("scanner/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			var scan pushScan
			for b.Loop() {
				if err := scan.scan(body); err != nil {
					b.Fatal(err)
				}
			}
			perMessage(b)
		})
		b.Run(fmt.Sprintf("jsontext/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := referenceScan(body); err != nil {
					b.Fatal(err)
				}
			}
			perMessage(b)
		})
		b.Run(fmt.Sprintf("encoding-json/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				var request struct {
					Items []struct {
						Queue         string          `json:"queue"`
						Partition     *string         `json:"partition"`
						TransactionID string          `json:"transactionId"`
						TraceID       json.RawMessage `json:"traceId"`
						Payload       json.RawMessage `json:"payload"`
					} `json:"items"`
				}
				if err := json.Unmarshal(body, &request); err != nil {
					b.Fatal(err)
				}
			}
			perMessage(b)
		})
	}
}
