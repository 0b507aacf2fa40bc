// Manifests checks Kubernetes manifests against the types of the Kubernetes API: unknown fields, fields given twice and values of a wrong type
// are faults, which the API server would drop or refuse. It is a module of its own, so that the broker does not depend on those types.
//
//	cd tools/manifests && go run . ../../deploy/kubernetes/*.yaml
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	faults := 0
	for _, path := range os.Args[1:] {
		n, err := check(path)
		if err != nil {
			faults++
			fmt.Fprintf(os.Stderr, "%s: %v\n", path, err)
			continue
		}
		fmt.Printf("%s: %d objects\n", path, n)
	}
	if faults > 0 || len(os.Args) < 2 {
		os.Exit(1)
	}
}

// check decodes every document of a file strictly and returns how many there are.
func check(path string) (n int, err error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{core.AddToScheme, apps.AddToScheme, policy.AddToScheme} {
		if err := add(scheme); err != nil {
			return 0, err
		}
	}
	decoder := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if _, kind, err := decoder.Decode(document, nil, nil); err != nil {
			return n, fmt.Errorf("document %d (%v): %w", n+1, kind, err)
		}
		n++
	}
}
