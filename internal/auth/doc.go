// Package auth checks tokens (JWT) and says who a caller is and which roles it holds. It knows no routes: which roles a route
// admits stands in the route table of the API.
//
// What it promises:
//
//   - The algorithms a token may use are fixed at start, by the setting and by the keys there are: the list [New] refuses a
//     configuration with is the list that [Verifier.Verify] goes by. The token's own header never chooses the kind of key.
//   - A configuration that could not check a single token is refused at start, with the name of the variable.
//   - A token is refused when anything about it is not understood.
//
// A [Verifier] is safe for concurrent use. Its Run keeps the key set of a JWKS URL fresh; without such a URL it only waits.
package auth
