//go:build race

package main

// raceDetector says whether the tests, and so the binary that they build, run with the race detector.
const raceDetector = true
