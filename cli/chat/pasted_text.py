"""How the line editor shows what is typed or pasted into it. Only the editor imports this: prompt_toolkit is
slow to import."""

from __future__ import annotations

from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput

from ..console.safe_text import characters


class ShownSafely(Processor):
    """Shows U+FFFD for what would command the terminal or turn the line around; the message keeps it."""

    def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
        shown: StyleAndTextTuples = [
            (fragment[0], characters(fragment[1]), *fragment[2:])
            for fragment in transformation_input.fragments
        ]
        return Transformation(shown)
