package output

// diffLimit bounds the table that Diff fills; longer texts are compared from both ends and shown as replaced in between.
const diffLimit = 4_000_000

// Diff compares two texts line by line. The result has every line, with "  ", "- " or "+ " in front.
func Diff(left, right []string) (lines []string, same bool) {
	start := 0
	for start < len(left) && start < len(right) && left[start] == right[start] {
		start++
	}
	tail := 0
	for tail < len(left)-start && tail < len(right)-start && left[len(left)-1-tail] == right[len(right)-1-tail] {
		tail++
	}
	for _, line := range left[:start] {
		lines = append(lines, "  "+line)
	}
	lines = append(lines, changed(left[start:len(left)-tail], right[start:len(right)-tail])...)
	for _, line := range left[len(left)-tail:] {
		lines = append(lines, "  "+line)
	}
	return lines, start == len(left) && start == len(right)
}

// changed finds the longest common subsequence.
func changed(left, right []string) (lines []string) {
	if len(left)*len(right) > diffLimit {
		for _, line := range left {
			lines = append(lines, "- "+line)
		}
		for _, line := range right {
			lines = append(lines, "+ "+line)
		}
		return lines
	}
	longest := make([][]int, len(left)+1)
	for i := range longest {
		longest[i] = make([]int, len(right)+1)
	}
	for i := len(left) - 1; i >= 0; i-- {
		for j := len(right) - 1; j >= 0; j-- {
			if left[i] == right[j] {
				longest[i][j] = longest[i+1][j+1] + 1
			} else {
				longest[i][j] = max(longest[i+1][j], longest[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(left) || j < len(right) {
		switch {
		case i < len(left) && j < len(right) && left[i] == right[j]:
			lines = append(lines, "  "+left[i])
			i, j = i+1, j+1
		case i < len(left) && (j == len(right) || longest[i+1][j] >= longest[i][j+1]):
			lines = append(lines, "- "+left[i])
			i++
		default:
			lines = append(lines, "+ "+right[j])
			j++
		}
	}
	return lines
}
